# SPDX-License-Identifier: Apache-2.0
"""What ``explain`` and ``scan`` show of devices, groups, resources, rules, pods, cards and VMs. Pure."""
