# SPDX-License-Identifier: Apache-2.0
"""The .rpm: its life cycle by the rpm tool on a booted system, and what dnf makes of its dependencies.

The system is Debian's, so the dependencies are left to dnf, which solves them against repositories of stubs
with the names and versions of Enterprise Linux.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.facts import names
from tests.packaging import machine, systems
from tests.packaging.building import NFPM, Packages
from tests.packaging.machine import Machine

CONFIG = "/etc/nodeagent/config.yaml"
EDITED = "apiVersion: nodeagent/v1\ndiscovery: {naming: id}\n"
PRESET = "/etc/systemd/system-preset/10-distribution.preset"
RELEASES = {
    "EL8": {"python3": "3.6.8", "systemd": "239", "kmod": "25"},
    "EL9": {
        "python3": "3.9.18",
        "python3.11": "3.11.7",
        "python3.12": "3.12.1",
        "systemd": "252",
        "kmod": "28",
    },
    "EL10": {"python3": "3.12.5", "systemd": "257", "kmod": "31"},
}


@pytest.fixture
def empty() -> Iterator[Machine]:
    """A booted system with rpm, whose presets enable the service."""
    with machine.booted(systems.root("bookworm")) as found:
        found.write(PRESET, "enable nodeagent.service\n")
        yield found


@pytest.fixture
def installed(empty: Machine, packages: Packages) -> Machine:
    """The same with the .rpm, and the service started."""
    empty.run(f"rpm --install --nodeps {empty.put(packages.rpm)} && systemctl start nodeagent")
    return empty


@pytest.mark.parametrize(("preset", "state"), [("enable", "enabled"), ("disable", "disabled")])
def test_an_installation_obeys_the_preset_and_starts_nothing(
    empty: Machine, packages: Packages, preset: str, state: str
) -> None:
    empty.write(PRESET, f"{preset} nodeagent.service\n")
    empty.run(f"rpm --install --nodeps {empty.put(packages.rpm)}")
    assert empty.says("systemctl is-enabled nodeagent") == state
    assert empty.show("ActiveState") == "inactive"
    assert empty.says("rpm --verify --nodeps nodeagent") == ""


def test_byte_code_goes_to_the_cache_and_nowhere_else(installed: Machine) -> None:
    installed.run("nodeagent scan")
    assert installed.says("find /usr/lib/nodeagent -name '*.pyc'") == ""
    assert installed.says("find /var/cache/nodeagent/pycache/usr/lib/nodeagent -name 'app.*.pyc'")


def test_an_older_default_python_is_passed_over_and_without_a_newer_one_it_is_said(
    installed: Machine,
) -> None:
    installed.run("ln -sf python3.9 /usr/bin/python3")  # as on Enterprise Linux 9
    assert installed.says("nodeagent --version").startswith("nodeagent ")
    installed.run("rm /usr/bin/python3.11")
    done = installed.run("nodeagent --version", check=False)
    assert done.returncode == 127
    told, advice = done.stderr.splitlines()
    names(told, "Python 3.11", "/usr/bin")
    names(advice, "python3.11")


def test_an_upgrade_restarts_the_service_and_keeps_an_edited_configuration(
    installed: Machine, newer: Packages
) -> None:
    installed.write(CONFIG, EDITED)
    before = installed.show("MainPID")
    installed.run(f"rpm --upgrade --nodeps {installed.put(newer.rpm)}")
    installed.until_active()
    assert installed.show("MainPID") != before
    assert "nodeagent 99.0.0 started" in installed.journal()
    assert installed.says(f"cat {CONFIG}") == EDITED.strip()
    assert len(installed.says("ls /usr/lib/nodeagent").split()) == 1
    assert len(installed.says("ls /var/cache/nodeagent/pycache/usr/lib/nodeagent").split()) == 1


def test_an_erased_package_leaves_nothing_but_an_edited_configuration(
    empty: Machine, packages: Packages
) -> None:
    empty.run("mkdir -p /var/lib/kubelet/device-plugins")  # the kubelet's; the daemon's lock is in it
    before = empty.files()
    empty.run(f"rpm --install --nodeps {empty.put(packages.rpm)} {empty.put(packages.demo_rpm)}")
    empty.run("systemctl start nodeagent && nodeagent scan")
    empty.write(CONFIG, EDITED)
    empty.run("rpm --erase nodeagent-demo nodeagent")
    assert empty.show("ActiveState") == "inactive"
    kept = {"/etc/nodeagent", "/etc/nodeagent/config.yaml.rpmsave", "/run/cdi"}
    assert empty.files() - before == kept


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, packages: Packages, tmp_path: Path) -> tuple[str, Path]:
    """A release, and a repository with its stubs and our packages."""
    repository = tmp_path / "repository"
    repository.mkdir()
    for name, version in RELEASES[request.param].items():
        stub(repository, name, version)
    for rpm in (packages.rpm, packages.demo_rpm):
        (repository / rpm.name).write_bytes(rpm.read_bytes())
    subprocess.run(["createrepo_c", "--quiet", str(repository)], check=True, capture_output=True)
    return str(request.param), repository


def stub(repository: Path, name: str, version: str) -> None:
    """An empty package of that name and version."""
    known = {"version_schema": "none", "arch": "all", "maintainer": "test", "description": "A stub"}
    recipe = repository.parent / f"{name}.yaml"
    recipe.write_text(yaml.safe_dump({"name": name, "version": version} | known))
    command = [str(NFPM), "package", "--config", str(recipe), "--packager", "rpm"]
    subprocess.run([*command, "--target", str(repository)], check=True, capture_output=True)


def test_dnf_takes_the_python_that_a_release_has_or_says_what_is_missing(
    release: tuple[str, Path], tmp_path: Path
) -> None:
    name, repository = release
    root = f"{tmp_path}/root"
    source = (f"--installroot={root}", f"--repofrompath=test,file://{repository}", "--repo=test")
    plain = ("--nogpgcheck", "--releasever=0", "--setopt=tsflags=noscripts", "--assumeyes")
    command = ["dnf", *source, *plain, "install", "nodeagent-demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if name == "EL8":
        assert done.returncode
        assert "nothing provides (python3 >= 3.11 or python3.14" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    query = ["rpm", f"--root={root}", "--query", "--all", "--queryformat", "%{NAME} "]
    installed = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    python = {"EL9": "python3.11", "EL10": "python3"}[name]
    assert sorted(installed) == ["kmod", "nodeagent", "nodeagent-demo", python, "systemd"]
