#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what `make e2e` takes from Debian (and its descendants). Needs root.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends \
    containerd runc busybox-static openssl util-linux mount buildah podman mmdebstrap debian-archive-keyring
