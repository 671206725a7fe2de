# SPDX-License-Identifier: Apache-2.0
"""Utilities for every layer: errors, cells, back-off, logs, file watches, supervision.

Contains nothing about devices.
"""
