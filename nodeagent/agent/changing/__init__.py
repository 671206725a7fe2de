# SPDX-License-Identifier: Apache-2.0
"""Makes the planned changes of the host, and records the changes that the host itself does not show."""
