# SPDX-License-Identifier: Apache-2.0
"""What each package says and holds, as nfpm wants to be told. One recipe serves .deb and .rpm.

Knows places and names on an installed system; what is in the files was laid out before.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder import sbom, source, texts
from builder.payload import PLACE, Payload

Recipe = dict[str, Any]

MAINTAINER = "nodeagent authors <nodeagent@localhost>"
PYTHONS = " or ".join(["python3 >= 3.11", *(f"python3.{minor}" for minor in (14, 13, 12, 11))])
DAEMON = """\
One daemon per Kubernetes node for devices given to KubeVirt virtual machines

It sees PCI devices, IOMMU groups and mediated devices, offers passthrough devices and vGPUs to the kubelet
with truthful health, makes vGPUs to order, and says why a device is not offered."""
DEMO = """\
Simulated node for nodeagent, and a demonstration on it

The command nodeagent demo runs the real daemon on a made-up host with a stand-in kubelet. It needs neither
hardware nor root."""


def daemon(payload: Payload, stage: Path) -> Recipe:
    """The package ``nodeagent``; ``stage`` holds what was written for it."""
    recipe = _common("nodeagent", DAEMON) | {"contents": list(_of_the_daemon(payload, stage))}
    deb, rpm = stage / "deb", stage / "rpm"
    recipe["overrides"]["deb"] |= {
        "depends": ["python3 (>= 3.11)", "systemd (>= 247)", "init-system-helpers (>= 1.54)", "kmod"],
        "scripts": _scripts(deb, postinstall="postinst", preremove="prerm", postremove="postrm"),
    }
    recipe["overrides"]["rpm"] |= {
        "depends": [f"({PYTHONS})", "systemd", "kmod"],
        "scripts": _scripts(rpm, postinstall="post", preremove="preun", postremove="postun"),
    }
    for override in recipe["overrides"].values():
        override["recommends"] = ["mdevctl"]
        override["suggests"] = ["nodeagent-demo"]
    return recipe


def demo(payload: Payload, stage: Path) -> Recipe:
    """The package ``nodeagent-demo``."""
    tree = payload.demo / PLACE
    contents = [
        {"src": f"{tree}", "dst": f"/{PLACE}", "type": "tree"},
        *_documents("nodeagent-demo", stage, ()),
        _file(
            stage / "deb/nodeagent-demo.rtupdate",
            "/usr/share/python3/runtime.d/nodeagent-demo.rtupdate",
            0o755,
            "deb",
        ),
    ]
    recipe = _common("nodeagent-demo", DEMO) | {"contents": contents}
    exact = f"{source.version()}-{recipe['release']}"
    recipe["overrides"]["deb"] |= {
        "depends": [f"nodeagent (= {exact})"],
        "scripts": _scripts(stage / "deb", postinstall="demo.postinst", preremove="demo.prerm"),
    }
    recipe["overrides"]["rpm"] |= {"depends": [f"nodeagent = {exact}"]}
    return recipe


def signed(recipe: Recipe, key: Path) -> Recipe:
    """The recipe with signatures: what ``rpm --checksig`` and ``debsig-verify`` read."""
    rpm = recipe["rpm"] | {"signature": {"key_file": str(key)}}
    deb = recipe["deb"] | {"signature": {"method": "debsign", "type": "origin", "key_file": str(key)}}
    return recipe | {"rpm": rpm, "deb": deb}


def _common(name: str, description: str) -> Recipe:
    return {
        "name": name,
        "arch": "all",
        "platform": "linux",
        "version": source.version(),
        "version_schema": "none",
        "release": "1",
        "section": "admin",
        "priority": "optional",
        "maintainer": MAINTAINER,
        "vendor": "nodeagent authors",
        "license": "Apache-2.0",
        "description": "\n".join(_wrapped(description)),
        "mtime": _stamp(),
        "changelog": str(source.PACKAGING / "changelog.yaml"),
        "overrides": {"deb": {}, "rpm": {}},
        "deb": {"compression": "xz"},
        "rpm": {"compression": "zstd", "buildhost": "localhost", "group": "System Environment/Daemons"}
        | {"summary": description.partition("\n")[0]},
    }


def _wrapped(text: str) -> Iterator[str]:
    first, _, rest = text.partition("\n\n")
    yield from (first, *textwrap.wrap(rest, 76))


def _stamp() -> str:
    return datetime.fromtimestamp(source.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_the_daemon(payload: Payload, stage: Path) -> Iterator[Recipe]:
    ours = source.PACKAGING
    yield {"src": f"{payload.daemon / PLACE}", "dst": f"/{PLACE}", "type": "tree"}
    for format_ in ("deb", "rpm"):
        yield _file(stage / f"nodeagent.{format_}", "/usr/bin/nodeagent", 0o755, format_)
    yield _file(ours / "nodeagent.service", "/usr/lib/systemd/system/nodeagent.service")
    yield _file(ours / "nodeagent-http.socket", "/usr/lib/systemd/system/nodeagent-http.socket")
    yield _file(stage / "texts" / texts.CATALOG, f"/{texts.CATALOG}")
    yield _file(ours / "tmpfiles.conf", "/usr/lib/tmpfiles.d/nodeagent.conf")
    yield _file(ours / "modules-load.conf", "/usr/lib/modules-load.d/nodeagent.conf")
    for directory in ("/etc/nodeagent", "/etc/nodeagent/conf.d"):
        yield _directory(directory)
    yield _file(ours / "config.yaml", "/etc/nodeagent/config.yaml") | {"type": "config|noreplace"}
    for shell, place in texts.COMPLETIONS.items():
        yield _file(stage / "texts" / place, f"/{place}", packager="deb" if shell == "zsh" else "")
    zsh = stage / "texts" / texts.COMPLETIONS["zsh"]
    yield _file(zsh, "/usr/share/zsh/site-functions/_nodeagent", packager="rpm")
    yield from _document(stage / "texts" / texts.MAN_PAGE, f"/{texts.MAN_PAGE}")
    yield from _documents("nodeagent", stage, texts.DOCUMENTS)
    yield from _document(stage / "notices.gz", "/usr/share/doc/nodeagent/third-party-notices.gz")
    yield from _document(stage / sbom.SHIPPED_AS, f"/usr/share/doc/nodeagent/{sbom.SHIPPED_AS}")
    yield _file(
        stage / "deb/nodeagent.rtupdate", "/usr/share/python3/runtime.d/nodeagent.rtupdate", 0o755, "deb"
    )
    yield _file(ours / "rpm/bytecode.conf", f"{_DROP_INS}/10-bytecode.conf", packager="rpm")
    shared = ("fish", "fish/vendor_completions.d", "zsh", "zsh/site-functions")
    for directory in (_DROP_INS, *(f"/usr/share/{name}" for name in shared)):
        yield _directory(directory) | {"packager": "rpm"}


_DROP_INS = "/usr/lib/systemd/system/nodeagent.service.d"


def _documents(name: str, stage: Path, pages: Iterable[str]) -> Iterator[Recipe]:
    place = f"/usr/share/doc/{name}"
    yield _directory(place) | {"packager": "rpm"}
    yield from _document(source.PACKAGING / "copyright", f"{place}/copyright")
    yield _file(
        source.PACKAGING / f"deb/{name}.lintian-overrides",
        f"/usr/share/lintian/overrides/{name}",
        packager="deb",
    )
    for page in pages:
        yield from _document(stage / f"texts{place}/{page}", f"{place}/{page}")


def _document(src: Path, dst: str) -> Iterator[Recipe]:
    """rpm wants documentation to be marked; nfpm leaves what is marked out of a .deb."""
    yield _file(src, dst, packager="deb")
    yield _file(src, dst, packager="rpm") | {"type": "doc"}


def _file(src: Path, dst: str, mode: int = 0o644, packager: str = "") -> Recipe:
    entry: Recipe = {"src": str(src), "dst": dst, "file_info": {"mode": mode}}
    return entry | {"packager": packager} if packager else entry


def _directory(dst: str) -> Recipe:
    """One that goes with the package; of those above a file a .deb needs none, an .rpm all."""
    return {"dst": dst, "type": "dir", "file_info": {"mode": 0o755}}


def _scripts(folder: Path, **names: str) -> dict[str, str]:
    return {event: str(folder / name) for event, name in names.items()}
