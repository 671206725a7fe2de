#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs nodeagent with the first Python 3.11 or newer of the distribution, the default one first. -S: nothing that
# is installed beside it for Python has a part in it. The version is read from the name, for that costs no start.
export PYTHONPATH=/usr/lib/nodeagent/@CODE@
export @BYTECODE@
for python in "$(readlink -f /usr/bin/python3)" /usr/bin/python3.14 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11; do
    case $python in
        */python3.1[1-9] | */python3.[2-9][0-9])
            [ -x "$python" ] && exec "$python" -P -s -S -m nodeagent "$@" ;;
    esac
done
echo "nodeagent: there is no Python 3.11 or newer in /usr/bin" >&2
echo "install one from your distribution, such as python3.11" >&2
exit 127
