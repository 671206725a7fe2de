# SPDX-License-Identifier: Apache-2.0
"""What KubeVirt's reader has printed in a container: the devices of the <hostdev> elements."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from tests.e2e.pods import Given


def host_devices(given: Given) -> list[str]:
    """The PCI addresses and mdev UUIDs, in order."""
    start, end = given.text.index("<devices>"), given.text.index("</devices>") + len("</devices>")
    found = ElementTree.fromstring(given.text[start:end]).iterfind("hostdev/source/address")
    return [_device(address.attrib) for address in found]


def _device(address: dict[str, str]) -> str:
    if "uuid" in address:
        return address["uuid"]
    parts = {name: value.removeprefix("0x") for name, value in address.items()}
    return "{domain}:{bus}:{slot}.{function}".format(**parts)


def owners(given: Given) -> dict[str, str]:
    """Device node → uid of its owner, from the output of ``OWNERS``."""
    lines = (line.split() for line in given.text.splitlines() if line.startswith("owner "))
    return {path: uid for _, uid, path in lines}


OWNERS = "stat -c 'owner %u %n' /dev/vfio/*"
