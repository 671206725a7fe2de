# SPDX-License-Identifier: Apache-2.0
"""gRPC on unix sockets, both ends of it. Knows no service."""
