# SPDX-License-Identifier: Apache-2.0
"""The loops that join the sides: what was seen and wished becomes what is offered and told."""
