# SPDX-License-Identifier: Apache-2.0
"""Texts for people: tables and stories, made from values. Reads nothing and decides nothing."""
