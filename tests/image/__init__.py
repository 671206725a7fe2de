# SPDX-License-Identifier: Apache-2.0
"""The container image and the manifests, with the tools that people use on them."""
