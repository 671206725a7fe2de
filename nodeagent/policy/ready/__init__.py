# SPDX-License-Identifier: Apache-2.0
"""Can this host give devices to virtual machines? Values in, lines out. Pure."""
