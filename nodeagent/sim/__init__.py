# SPDX-License-Identifier: Apache-2.0
"""A simulated host, a fake kubelet and a fake API server: real files and protocols, for demo and tests."""
