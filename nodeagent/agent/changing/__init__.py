# SPDX-License-Identifier: Apache-2.0
"""Changes the host: makes the changes of the Plan, and records those that the host itself does not show."""
