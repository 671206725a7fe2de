# SPDX-License-Identifier: Apache-2.0
"""Computes the ResourceSlices of this node and the files of prepared ResourceClaims (DRA). Pure."""
