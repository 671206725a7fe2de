# SPDX-License-Identifier: Apache-2.0
"""Pods are created and deleted while the kubelet, the daemon and the devices fail."""
