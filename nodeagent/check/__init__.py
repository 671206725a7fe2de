# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check``: is this node ready to assign devices to VMs, and if not, what to do."""
