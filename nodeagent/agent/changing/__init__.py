# SPDX-License-Identifier: Apache-2.0
"""The loop that changes the host: carries out the Plan, and remembers what the host does not show."""
