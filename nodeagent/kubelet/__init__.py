# SPDX-License-Identifier: Apache-2.0
"""Talks to the kubelet: its sockets and files. Decides nothing about devices."""
