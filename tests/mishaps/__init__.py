# SPDX-License-Identifier: Apache-2.0
"""What can go wrong at each write of a binding, and of its way back, of 64 functions in 16 groups."""
