# SPDX-License-Identifier: Apache-2.0
"""Explains devices, groups, resources, rules, pods, cards and VMs, for ``explain`` and ``scan``."""
