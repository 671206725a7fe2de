# SPDX-License-Identifier: Apache-2.0
"""From a Snapshot to the resources for the kubelet: matches, health, resources, grants. Pure."""
