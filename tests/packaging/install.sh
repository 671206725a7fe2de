#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what `make packaging-test` takes from Debian (and its descendants). Needs root.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends \
    mmdebstrap systemd-container debian-archive-keyring rpm rpmlint lintian dnf createrepo-c \
    bash-completion zsh fish man-db util-linux gnupg binutils
