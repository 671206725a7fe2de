# SPDX-License-Identifier: Apache-2.0
"""The daemon over HTTP: metrics, health and the status page."""
