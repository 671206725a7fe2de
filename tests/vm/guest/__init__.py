# SPDX-License-Identifier: Apache-2.0
"""What runs inside the emulated machine: scenarios on the real kernel, with the real daemon."""
