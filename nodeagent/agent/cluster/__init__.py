# SPDX-License-Identifier: Apache-2.0
"""Talks to the API server: merges the KubeVirt CR and this node's Node into the Spec, and writes reports."""
