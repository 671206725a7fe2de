# SPDX-License-Identifier: Apache-2.0
"""The tier on booted systems: the packages, installed as an administrator would."""
