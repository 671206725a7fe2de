# SPDX-License-Identifier: Apache-2.0
"""The daemon over HTTP: commands on the unix socket; metrics, health and the status page by TCP."""
