# SPDX-License-Identifier: Apache-2.0
"""Makes texts from values: metrics, the status page, the log catalog. The package reads no state."""
