# SPDX-License-Identifier: Apache-2.0
"""The only talk with the kubelet: its sockets and its wire types. Decides nothing about devices."""

from __future__ import annotations

from nodeagent.kubelet import lean

lean.load()
