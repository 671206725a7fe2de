# SPDX-License-Identifier: Apache-2.0
"""The checks behind a device's health, by what they look at: the device, its group, who has it. Pure."""
