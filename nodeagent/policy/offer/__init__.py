# SPDX-License-Identifier: Apache-2.0
"""From what is to what the kubelet is told: matches, units, health, grants. Pure; knows no change."""
