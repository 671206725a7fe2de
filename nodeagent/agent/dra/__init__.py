# SPDX-License-Identifier: Apache-2.0
"""DRA (Dynamic Resource Allocation): devices in ResourceSlices, and the claims that the kubelet prepares."""
