# SPDX-License-Identifier: Apache-2.0
"""``nodeagent demo``: runs the daemon on simulated nodes. Only the demo command imports this package."""
