# SPDX-License-Identifier: Apache-2.0
"""Golden pages: the output of each renderer for one input that shows most kinds of lines.

``test_golden`` compares them whole. ``python -m tests.cli.golden`` writes them again: review the diff. The
golden pages of the events of the log and of the table of metrics are docs/logs.md and docs/metrics.md.
"""
