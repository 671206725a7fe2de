# SPDX-License-Identifier: Apache-2.0
"""The only talk with /sys, /dev and the kernel's events: reads what is, writes as told. Decides nothing."""
