# SPDX-License-Identifier: Apache-2.0
"""What every layer may use: errors, cells, back-off, logs, watches, supervision. Knows nothing of devices."""
