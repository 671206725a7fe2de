# SPDX-License-Identifier: Apache-2.0
"""A made-up host and a stand-in kubelet: real files and real protocols, for the demo and the tests."""
