# SPDX-License-Identifier: Apache-2.0
"""Reads what a person wrote, strictly, and says where each mistake stands."""
