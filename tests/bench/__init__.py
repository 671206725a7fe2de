# SPDX-License-Identifier: Apache-2.0
"""The benchmark: speed and size of the real daemon against the fake kubelet on a simulated host."""
