# SPDX-License-Identifier: Apache-2.0
"""Decides by pure functions: the offered devices, their health, the Allocate responses, the changes of the
host.
"""
