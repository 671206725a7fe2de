# SPDX-License-Identifier: Apache-2.0
"""Says when the host is to be scanned again, and what of it; carries no truth."""
