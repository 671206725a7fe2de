# SPDX-License-Identifier: Apache-2.0
"""A made-up host and a stand-in kubelet for nodeagent demo and the tests; the daemon needs none of it."""
