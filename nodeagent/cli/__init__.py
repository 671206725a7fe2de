# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per command, and how its errors and answers are printed."""
