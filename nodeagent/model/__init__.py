# SPDX-License-Identifier: Apache-2.0
"""The data types: frozen values that all layers pass to each other. The data types do no I/O and make no
decisions.
"""
