# SPDX-License-Identifier: Apache-2.0
"""Tools for every layer: errors, cells, back-off, logs, watches, supervision. Knows nothing of devices."""
