# SPDX-License-Identifier: Apache-2.0
"""Reads the host: one reader for each kind of object, and a scanner that no hanging device can block."""
