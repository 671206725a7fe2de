# SPDX-License-Identifier: Apache-2.0
"""Reads what files of other tools want of mediated devices."""
