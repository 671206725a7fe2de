# SPDX-License-Identifier: Apache-2.0
"""What is in the image, and that it is the same each time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nodeagent
from tests.image import containers, tools
from tests.image.containers import ROOT, Image

PLACE = "opt/nodeagent"


@pytest.fixture(scope="module")
def files(image: Image) -> Iterator[Path]:
    with containers.files(image) as root:
        yield root


def test_the_dockerfile_is_as_hadolint_wants_it() -> None:
    done = tools.run("hadolint", str(ROOT / "Dockerfile"))
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_what_is_wrong() -> None:
    assert "DL3002" in tools.run("hadolint", "-", given="FROM a:1\nUSER root\n").stdout


@pytest.mark.timeout(400)
def test_two_builds_are_one_image(image: Image, tmp_path: Path) -> None:
    again = containers.build(tmp_path, "localhost/nodeagent-test:two")
    try:
        assert again.id == image.id
        assert again.inspected["Digest"] == image.inspected["Digest"]
        first, second = (next(each.archive.parent.glob("*.cdx.json")) for each in (image, again))
        assert second.read_bytes() == first.read_bytes()
    finally:
        containers.podman("image", "rm", again.name)


def test_it_says_what_it_is(image: Image) -> None:
    config = image.inspected["Config"]
    labels = config["Labels"]
    assert config["User"] == "0:0"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"][0] == "python3.11"
    assert config["Cmd"] == ["run"]
    assert labels["org.opencontainers.image.version"] == nodeagent.__version__
    assert re.fullmatch(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert "Volumes" not in config


def test_the_program_says_its_version(image: Image) -> None:
    told = containers.podman("run", "--rm", *containers.CLOSED, image.name, "--version")
    assert told.splitlines()[0] == f"nodeagent {nodeagent.__version__}"


def test_there_is_no_shell_no_package_manager_and_no_pip(files: Path) -> None:
    found = [
        name
        for name in ("sh", "bash", "dash", "dpkg", "apt", "pip", "pip3")
        if (files / "usr/bin" / name).exists()
    ]
    assert found == []
    assert not (files / "bin/sh").exists()
    assert not (files / "usr/lib/python3/dist-packages/pip").exists()


def test_all_code_is_plain_python_and_compiled(files: Path) -> None:
    code = files / PLACE / "lib"
    modules = {path.relative_to(code) for path in code.rglob("*.py")}
    compiled = {
        path.parent.parent.relative_to(code) / f"{path.name.partition('.')[0]}.py"
        for path in code.rglob("*.pyc")
    }
    assert Path("nodeagent/app.py") in modules
    assert Path("h11/__init__.py") in modules
    assert compiled == modules
    assert not list(code.rglob("*.so"))


def test_pythons_own_modules_are_compiled_too(files: Path) -> None:
    library = files / "usr/lib/python3.11"
    compiled = {path.parent.parent / f"{path.name.partition('.')[0]}.py" for path in library.rglob("*.pyc")}
    assert {library / "asyncio/events.py", library / "json/decoder.py"} <= compiled


def test_the_demo_is_not_in_it_and_the_licences_are(files: Path) -> None:
    assert not list((files / PLACE).rglob("sim"))
    assert not list((files / PLACE).rglob("demo"))
    assert "BSD" in (files / PLACE / "copyright").read_text()
    assert "h11" in (files / PLACE / "NOTICES").read_text()


def test_no_path_of_the_machine_that_built_it_is_in_it(files: Path) -> None:
    told = str(ROOT).encode()
    assert [path for path in (files / PLACE).rglob("*") if path.is_file() and told in path.read_bytes()] == []


def test_its_size_is_the_one_in_the_documentation(image: Image) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    found = re.search(r"\| the image \| (\d+) MB \|", page)
    assert found is not None
    assert abs(image.archive.stat().st_size / 1e6 - int(found[1])) < 2
