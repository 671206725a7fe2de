# SPDX-License-Identifier: Apache-2.0
"""Builds the packages: ``python -m builder``, with this folder's parent on the path."""
