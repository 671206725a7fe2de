# SPDX-License-Identifier: Apache-2.0
"""Bad nights of a node: whatever may befall it at once, in an order that a seed decides."""
