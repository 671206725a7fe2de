# SPDX-License-Identifier: Apache-2.0
"""Simulated host, fake kubelet and fake API server, with real files and protocols, for demo and tests."""
