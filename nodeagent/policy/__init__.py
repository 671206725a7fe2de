# SPDX-License-Identifier: Apache-2.0
"""Decisions: what is offered, how healthy it is, what a pod is given. Pure: values in, values out."""
