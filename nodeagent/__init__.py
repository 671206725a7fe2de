# SPDX-License-Identifier: Apache-2.0
"""nodeagent: one daemon per node for devices given to virtual machines."""

__version__ = "0.1.0"
