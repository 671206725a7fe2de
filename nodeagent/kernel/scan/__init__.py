# SPDX-License-Identifier: Apache-2.0
"""Reads the host: one reader for each kind of thing, and a runner that no hanging device can stop."""
