# SPDX-License-Identifier: Apache-2.0
"""The tier on a real Linux kernel: QEMU without KVM, an emulated IOMMU, the daemon from the checkout."""
