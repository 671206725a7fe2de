# SPDX-License-Identifier: Apache-2.0
"""nodeagent: a daemon on each KubeVirt node that manages host devices for virtual machines."""

__version__ = "0.1.0"
