# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the daemon: the commands use its unix socket; metrics, health and status page use
TCP.
"""
