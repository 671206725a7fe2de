# SPDX-License-Identifier: Apache-2.0
"""Fault tests that run for minutes: one seed decides which faults happen, and in which order."""
