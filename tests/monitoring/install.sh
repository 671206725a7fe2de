#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets what `make monitoring-test` takes from Debian. Chromium is installed (needs root); Prometheus is only unpacked
# into the cache, since its package would start a service.
set -eu
export DEBIAN_FRONTEND=noninteractive
cache="${NODEAGENT_CACHE:-$HOME/.cache/nodeagent}/monitoring"
command -v chromium >/dev/null || {
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
}
command -v promtool >/dev/null || [ -x "$cache/usr/bin/promtool" ] || {
    mkdir -p "$cache/download"
    cd "$cache/download"
    apt-get download -qq prometheus
    dpkg-deb -x prometheus_*.deb "$cache"
    rm -r "$cache/download"
}
