# SPDX-License-Identifier: Apache-2.0
"""The tier on a real cluster: one node on loopback, the daemon as a process of its own beside it."""
