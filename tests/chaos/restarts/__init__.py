# SPDX-License-Identifier: Apache-2.0
"""Hundreds of kubelet restarts under one daemon, while devices, configuration and pods change."""
