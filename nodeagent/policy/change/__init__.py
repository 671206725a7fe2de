# SPDX-License-Identifier: Apache-2.0
"""From the Spec to one Plan of Actions: drivers, VFs, mdevs and vGPUs. Pure; knows no offer."""
