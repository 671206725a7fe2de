# SPDX-License-Identifier: Apache-2.0
"""A fake kubelet: real gRPC on real sockets, with the device manager's behaviour of Kubernetes 1.36."""
