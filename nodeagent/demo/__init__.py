# SPDX-License-Identifier: Apache-2.0
"""``nodeagent demo``: the daemon on simulated nodes; nothing else imports it."""
