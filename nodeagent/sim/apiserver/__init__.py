# SPDX-License-Identifier: Apache-2.0
"""A fake API server: real HTTP on the loopback interface, with lists, watches and patches."""
