# SPDX-License-Identifier: Apache-2.0
"""The only package that accesses /sys, /dev, /proc and the kernel's events. It makes no decisions."""
