# SPDX-License-Identifier: Apache-2.0
"""From what is wanted to what is done about it: cards, VFs, one Plan of Actions. Pure; knows no offer."""
