# SPDX-License-Identifier: Apache-2.0
"""Communicates with the kubelet through its sockets and files. This package does not decide about devices."""
