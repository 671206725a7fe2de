# SPDX-License-Identifier: Apache-2.0
"""Computes the resources for the kubelet from a Snapshot: matches, health, resources, grants. Pure."""
