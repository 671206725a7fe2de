#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what `make vm` takes from Debian (and its descendants). Needs root.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends \
    qemu-system-x86 busybox-static cpio kmod xz-utils zstd util-linux mount iproute2 gcc make e2fsprogs mmdebstrap
