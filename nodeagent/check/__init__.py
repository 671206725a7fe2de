# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check``: checks whether this node is ready to assign devices to VMs, and how to fix
problems.
"""
