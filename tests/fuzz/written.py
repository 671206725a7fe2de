# SPDX-License-Identifier: Apache-2.0
"""Texts that people and other programs have written: configuration, saved hosts, pci.ids."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nodeagent.base.errors import ConfigError
from nodeagent.config import loading
from nodeagent.config.problems import ConfigErrors
from nodeagent.config.sources import Sources
from nodeagent.kernel import pci_ids
from nodeagent.kernel.root import Root
from nodeagent.model import host_json
from nodeagent.policy import merge
from tests.fuzz import judging, mutations
from tests.fuzz.running import Target

ROOT = Path(__file__).parents[2]
_YAML = (
    *(b"\n", b"  ", b"- ", b": ", b"[", b"]", b"{", b"}", b"*", b"?", b"!", b"&a", b"*a", b"'", b'"', b"\t"),
    *(b"0000:65:00.0", b"10de", b"null", b"~", b"true", b"60s", b"1e999", b"\xff", b"#", b"---\n", b"<<: "),
    *(b"resources:", b"aliases:", b"mdevs:", b"sriov:", b"discovery:", b"pci:", b"mdev:", b"node:", b"name:"),
    *(
        b"vendors:",
        b"devices:",
        b"isolation:",
        b"count: ",
        b"kubevirt:",
        b"timing:",
        b"path:",
        b"|\n",
        b"\\U",
    ),
)
_IDS = (b"\n", b"\t", b"\t\t", b"  ", b"10de", b"1f08", b"#", b"[", b"]", b"*", b"\xff", b"\r", b"(", b"\0")
_WANTED = frozenset(
    {("10de", "1f08"), ("10de", "10f9"), ("8086", "10d3"), ("144d", "a808"), ("*", "["), ("", "")}
)


def _examples() -> list[bytes]:
    """The configurations that the documentation shows."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        keys = r"^(resources|mdevs|sriov|discovery|aliases|http|kubevirt|timing):"
        found += [text.encode() for text in blocks if re.search(keys, text, re.MULTILINE)]
    assert len(found) > 3, "the documentation shows no configurations any more"
    return found


def _configured(content: bytes) -> None:
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path = Path(directory, "etc/nodeagent/config.yaml")
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        try:
            settings = loading.load(Sources(directory, {}, {}))
        except ConfigError as error:
            for each in error.errors if isinstance(error, ConfigErrors) else (error,):
                judging.two_lines(each)
            return
        judging.decided(judging.demo_host(), merge.merge(settings.configuration))


def _saved(document: Any) -> None:
    try:
        host = host_json.load(document)
    except ConfigError as error:
        judging.two_lines(error)
        return
    judging.decided(host)


def _document_size(document: Any) -> int:
    return len(json.dumps(document))


def _named(content: bytes) -> None:
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path = Path(directory, pci_ids.HOST_FILES[0].lstrip("/"))
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        names = pci_ids.names(Root(directory), _WANTED)
    keys = {key for vendor, device in _WANTED for key in (vendor, f"{vendor}:{device}")}
    assert names.keys() <= keys, "it names what nobody asked for"
    judging.decided(judging.demo_host(), names=names)


def _ids() -> list[bytes]:
    """The vendors of the demo's node, as the database has them."""
    text = (ROOT / "nodeagent/data/pci.ids").read_bytes()
    found = []
    for vendor in (b"10de", b"8086", b"144d"):
        start = text.index(b"\n" + vendor + b"  ") + 1
        end = re.compile(rb"\n[^\t#]").search(text, start)
        found.append(text[start : end.start() + 1 if end else None][:4000])
    return [b"".join(found), b"10de  NVIDIA Corporation\n\t1f08  TU106 [GeForce RTX 2060 Rev. A]\n"]


def targets() -> list[Target]:
    """All of this module."""
    host = json.loads(json.dumps(host_json.dump(judging.demo_host())))
    return [
        Target("configuration", mutations.damaged(_examples(), _YAML), _configured),
        Target("saved-host", mutations.misshapen(host), _saved, _document_size),
        Target("pci.ids", mutations.damaged(_ids(), _IDS), _named),
    ]
