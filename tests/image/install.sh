#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what `make image-test` takes from Debian (and its descendants). Needs root.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends buildah podman runc mmdebstrap debian-archive-keyring
