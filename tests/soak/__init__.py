# SPDX-License-Identifier: Apache-2.0
"""Hundreds of kubelet restarts under one daemon, while all around it changes and runs short."""
