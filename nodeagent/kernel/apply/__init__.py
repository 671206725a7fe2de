# SPDX-License-Identifier: Apache-2.0
"""The only writes to sysfs: each change is written once, and verified."""
