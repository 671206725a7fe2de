# SPDX-License-Identifier: Apache-2.0
"""From a Snapshot to what the kubelet is offered: matches, health, resources, grants. Pure."""
