# SPDX-License-Identifier: Apache-2.0
"""The cluster side: what the KubeVirt CR and the Node say becomes a part of the Spec of this node."""
