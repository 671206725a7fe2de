# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed, or the write fails, at each write while 64 functions are bound and released."""
