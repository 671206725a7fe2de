# SPDX-License-Identifier: Apache-2.0
"""Tests of DRA (Dynamic Resource Allocation) on a real kubelet, scheduler and API server."""
