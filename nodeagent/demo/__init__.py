# SPDX-License-Identifier: Apache-2.0
"""The story that nodeagent demo plays on the made-up host; the daemon needs none of it."""
