# SPDX-License-Identifier: Apache-2.0
"""The nouns: frozen values that all layers pass to each other. No input or output, no decisions."""
