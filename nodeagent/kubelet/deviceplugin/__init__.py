# SPDX-License-Identifier: Apache-2.0
"""The device plugin protocol, v1beta1: the service, its list, and its registration."""
