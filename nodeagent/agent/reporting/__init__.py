# SPDX-License-Identifier: Apache-2.0
"""Collects the Status, and logs changes of devices, their users and problems."""
