# SPDX-License-Identifier: Apache-2.0
"""The only access to /sys, /dev, /proc and the kernel's events: reads and writes. Decides nothing."""
