# SPDX-License-Identifier: Apache-2.0
"""The only code that writes to sysfs: each change is written once and verified."""
