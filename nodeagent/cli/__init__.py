# SPDX-License-Identifier: Apache-2.0
"""The command line: the verbs, and how their errors and answers leave the process."""
