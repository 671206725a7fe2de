# SPDX-License-Identifier: Apache-2.0
"""A fake kubelet: real gRPC on real sockets, with the device manager's semantics of Kubernetes 1.36."""
