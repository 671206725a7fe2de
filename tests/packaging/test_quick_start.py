# SPDX-License-Identifier: Apache-2.0
"""The quick start of README, command by command, on a Debian with nothing but Python; needs the network."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.facts import names
from tests.packaging import machine, systems
from tests.packaging.building import ROOT
from tests.packaging.machine import Machine

README = (ROOT / "README.md").read_text()
HERE = "/srv/nodeagent"
OLD_CLOCK = "-o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false"  # of a frozen mirror
MINUTES = 600.0


@pytest.fixture(scope="module")
def system() -> Iterator[Machine]:
    """A Debian with the source, and with the package index of this machine."""
    with machine.booted(systems.root("bookworm"), network=True) as found:
        listed = "git ls-files -z | tar --create --null --files-from=-"
        packed = subprocess.run(["sh", "-c", listed], cwd=ROOT, capture_output=True, check=True).stdout
        found.run(f"mkdir {HERE} && tar --extract --directory {HERE}", stdin=packed)
        found.run(f"apt-get update -qq {OLD_CLOCK}", seconds=MINUTES)
        if certificates := os.environ.get("PIP_CERT"):
            found.write("/srv/index.crt", Path(certificates).read_bytes())
        yield found


def follow(system: Machine, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command as printed; root needs no sudo, and apt gets its yes."""
    command = command.removeprefix("sudo ").replace("apt install", "apt-get install -y -qq")
    passed = {"PIP_CERT": "/srv/index.crt"} if "PIP_CERT" in os.environ else {}
    passed |= {key: os.environ[key] for key in ("PIP_INDEX_URL",) if key in os.environ}
    environ = " ".join(f"{key}={shlex.quote(value)}" for key, value in passed.items())
    return system.run(f"cd {HERE} && export {environ} LC_ALL=C && {command}", check=check, seconds=MINUTES)


def printed(pattern: str) -> str:
    """The command in README that this finds."""
    found = re.search(pattern, README)
    assert found is not None, pattern
    return found[1]


@pytest.mark.network
@pytest.mark.timeout(900)
def test_the_demo_needs_the_prerequisites_and_prints_what_readme_shows(system: Machine) -> None:
    prerequisites = printed(r"\(Debian: `(apt install [^`]+)`\)")
    assert prerequisites.endswith(" python3-venv")
    follow(system, prerequisites.removesuffix(" python3-venv"))
    demo = printed(r"\n    (make demo)\n")
    refused = follow(system, demo, check=False)
    assert refused.returncode == 2
    names(refused.stderr, "venv", "apt install python3-venv")
    assert system.run(f"test -e {HERE}/.venv", check=False).returncode == 1
    follow(system, prerequisites)
    titles = re.findall(r"^\d+\. .*", printed(r"```text\n((?:\d+\. .*\n)+)```"), re.M)
    assert re.findall(r"^\d+\. .*", follow(system, demo).stdout, re.M) == titles


def test_each_command_of_getting_started_runs_where_the_package_is_installed(shared: Machine) -> None:
    config, permitted, vm = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    cr = {"kind": "KubeVirt", "spec": {"configuration": yaml.safe_load(permitted)}}
    for name, text in (("new.yaml", config), ("first.yaml", vm), ("cr.yaml", json.dumps(cr))):
        shared.write(f"/srv/{name}", text)
    page = (ROOT / "docs/getting-started.md").read_text()
    commands = re.findall(r"^ {4}(?:sudo )?(nodeagent [^#\n]+)", page, re.M)
    assert len(commands) > 5
    for command in commands:
        done = shared.run(f"cd /srv && {command}", check=False)
        assert done.returncode in (0, 3), f"{command}: {done.stderr}"
        assert done.stdout, command


@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_single_node_gets_its_package(system: Machine) -> None:
    follow(system, printed(r"\*\*Single node:\*\* `(make packages)`"))
    follow(system, printed(r"then `(sudo apt install ./dist/[^`]+\.deb)`"))
    system.until_active()
    pages = system.says("ls /usr/share/doc/nodeagent").split()
    assert {"getting-started.md.gz", "troubleshooting.md.gz"} <= {*pages}
    told = follow(system, printed(r"`(sudo nodeagent status)` lists"), check=False)
    assert told.returncode == 3, "there is no kubelet here"
    names(told.stdout, "problems", "kubelet")
