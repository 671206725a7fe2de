# SPDX-License-Identifier: Apache-2.0
"""The loops of the daemon: from the scanned host, the Spec and the kubelet's allocations to resources,
changes and reports.
"""
