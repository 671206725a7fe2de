# SPDX-License-Identifier: Apache-2.0
"""A fake API server: real HTTP on loopback, with the semantics of lists, watches and patches."""
