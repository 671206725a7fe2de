# SPDX-License-Identifier: Apache-2.0
"""The .deb on booted systems: installed, used, upgraded, removed."""

from __future__ import annotations

import json

from tests.packaging.building import Packages
from tests.packaging.machine import Machine, until

CONFIG = "/etc/nodeagent/config.yaml"
EDITED = "apiVersion: nodeagent/v1\ndiscovery: {naming: id}\n"
PLUGINS = "/var/lib/kubelet/device-plugins"  # the kubelet's; without it there is no lock in it
DRA_SOCKET = "/var/lib/kubelet/plugins_registry/nodeagent-dra.sock"
DPKG = "dpkg --force-confold -i"  # as apt calls it without a terminal


def test_an_installed_daemon_is_enabled_and_ready_and_tells_how_it_is(shared: Machine) -> None:
    assert shared.says("systemctl is-enabled nodeagent") == "enabled"
    assert "0 resources" in shared.journal("NODEAGENT_EVENT=ready")
    told = shared.run("nodeagent status", check=False)
    assert told.returncode == 3, "there is no kubelet here, and status says so"
    assert f"pid {shared.show('MainPID')}" in told.stdout
    assert not json.loads(shared.says("nodeagent status -o json"))["kubelet"]["present"]


def test_all_modules_are_compiled_at_the_installation_and_none_ever_after(installed: Machine) -> None:
    def modules(kind: str) -> int:
        return len(installed.says(f"find /usr/lib/nodeagent -name '*.{kind}'").splitlines())

    assert modules("py") == modules("pyc") > 200
    installed.run("rm $(find /usr/lib/nodeagent -name '*.pyc')")
    installed.run("nodeagent scan && systemctl restart nodeagent")
    assert modules("pyc") == 0


def test_an_upgrade_keeps_an_edited_configuration_and_a_disable(
    installed: Machine, packages: Packages, newer: Packages
) -> None:
    installed.write(CONFIG, EDITED)
    installed.run("systemctl disable nodeagent")
    before = installed.show("MainPID")
    installed.run(f"{DPKG} {installed.put(newer.deb)}")
    installed.until_active()
    assert installed.says(f"cat {CONFIG}") == EDITED.strip()
    assert installed.says("systemctl is-enabled nodeagent") == "disabled"
    assert installed.show("MainPID") != before
    assert installed.says("nodeagent --version").splitlines()[0] == "nodeagent 99.0.0"
    assert len(installed.says("ls /usr/lib/nodeagent").split()) == 1, "the code of the old version is gone"
    assert str(packages) != str(newer)


def test_a_downgrade_keeps_the_configuration_and_a_key_that_only_the_newer_version_knew_must_go(
    installed: Machine, packages: Packages, newer: Packages
) -> None:
    older = installed.put(packages.deb)
    same = installed.run(f"apt-get install -y {older}")
    assert "is already the newest version" in same.stdout
    installed.run(f"{DPKG} {installed.put(newer.deb)}")
    installed.write(CONFIG, f"{EDITED}tomorrow: 1\n")
    assert installed.run(f"apt-get install -y {older}", check=False).returncode, "apt wants to be told"
    installed.run(f"apt-get install -y --allow-downgrades {older}")
    assert installed.says("nodeagent --version").splitlines()[0] == "nodeagent 0.1.0"
    until(lambda: "tomorrow: unknown key" in installed.journal("-p err"), "the journal says what is wrong")
    assert "tomorrow: unknown key" in installed.run("nodeagent status", check=False).stdout
    installed.write(CONFIG, EDITED)
    installed.until_active()
    assert "discovery.naming" in installed.says("nodeagent config")


def test_a_stopped_and_disabled_service_stays_so_over_an_upgrade(installed: Machine, newer: Packages) -> None:
    installed.run("systemctl disable --now nodeagent")
    installed.run(f"{DPKG} {installed.put(newer.deb)}")
    assert installed.says("systemctl is-enabled nodeagent") == "disabled"
    assert installed.show("ActiveState") == "inactive"


def test_a_removal_keeps_the_configuration_and_a_purge_leaves_nothing(
    empty: Machine, packages: Packages
) -> None:
    empty.run(f"mkdir -p {PLUGINS}")
    before = empty.files()
    empty.run(f"dpkg -i {empty.put(packages.deb)} {empty.put(packages.demo_deb)}")
    empty.until_active()
    empty.run("nodeagent config")
    empty.write("/etc/nodeagent/conf.d/mine.yaml", EDITED)
    empty.write(DRA_SOCKET, "")  # a restart of the daemon keeps it
    empty.run("dpkg --remove nodeagent-demo nodeagent")
    empty.run(f"rmdir {DRA_SOCKET.rpartition('/')[0]}")
    assert empty.show("ActiveState") == "inactive"
    assert sorted(empty.files() - before) == [
        *("/etc/nodeagent", "/etc/nodeagent/conf.d", "/etc/nodeagent/conf.d/mine.yaml", CONFIG),
        *("/etc/systemd/system/multi-user.target.wants/nodeagent.service", "/run/cdi", "/run/nodeagent"),
        *("/run/nodeagent/nodeagent.lock", f"{PLUGINS}/nodeagent.lock"),
        *("/var/lib/nodeagent", "/var/lib/nodeagent/last.json"),
    ]
    empty.write("/run/cdi/nodeagent-0123456789.json", "{}")  # as one for a pod that has a device stays
    empty.run("dpkg --purge nodeagent-demo nodeagent")
    assert empty.files() == before
    helpers = empty.says("find /var/lib/systemd/deb-systemd-helper-*").splitlines()
    assert [path for path in helpers if "nodeagent" in path] == []


def test_a_purge_leaves_the_lock_and_the_cdi_files_of_another_nodeagent_on_the_node(
    installed: Machine,
) -> None:
    lock, cdi = f"{PLUGINS}/nodeagent.lock", "/run/cdi/nodeagent-0123456789.json"
    installed.write(cdi, "{}")
    installed.write(DRA_SOCKET, "")
    installed.run(f"systemctl stop nodeagent && mkdir -p {PLUGINS}")
    installed.run(f"systemd-run --quiet --unit=pod flock {lock} sleep infinity")
    until(lambda: installed.run(f"flock -n {lock} true", check=False).returncode, "the other one has it")
    installed.run("dpkg --remove nodeagent && dpkg --purge nodeagent")
    assert installed.says(f"ls {cdi} {lock} {DRA_SOCKET}").split() == [cdi, lock, DRA_SOCKET]


def test_a_stopped_daemon_is_killed_by_the_watchdog_and_comes_back(installed: Machine) -> None:
    quick = "[Service]\nWatchdogSec=1s\nTimeoutAbortSec=1s\nRestartSec=100ms\n"
    installed.write("/etc/systemd/system/nodeagent.service.d/quick.conf", quick)
    installed.run("systemctl daemon-reload && systemctl restart nodeagent")
    before = installed.show("MainPID")
    installed.run(f"kill -STOP {before}")
    until(lambda: installed.show("NRestarts") == "1", "it was started again")
    installed.until_active()
    assert "Failed with result 'watchdog'" in installed.journal()
    assert installed.show("MainPID") != before
    assert "pid " + installed.show("MainPID") in installed.says("nodeagent status")


def test_a_reload_reads_the_configuration_and_a_wrong_one_changes_nothing(shared: Machine) -> None:
    before = shared.show("MainPID")
    shared.write(CONFIG, EDITED)
    shared.run("systemctl reload nodeagent")
    until(lambda: "discovery.naming" in shared.journal(), "the new setting is in force")
    shared.write("/etc/nodeagent/conf.d/wrong.yaml", "discovery: {namings: id}\n")
    shared.run("systemctl reload nodeagent")
    until(lambda: 'did you mean "naming"?' in shared.journal(), "the journal says what is wrong")
    assert shared.show("MainPID") == before
    shared.until_active()
    shared.run(f"rm /etc/nodeagent/conf.d/wrong.yaml && echo 'apiVersion: nodeagent/v1' > {CONFIG}")


def test_the_demo_is_a_package_of_its_own(installed: Machine, packages: Packages) -> None:
    missing = installed.run("nodeagent demo", check=False)
    assert missing.returncode == 2
    assert len(missing.stderr.splitlines()) == 2
    assert "nodeagent-demo" in missing.stderr
    installed.run(f"dpkg -i {installed.put(packages.demo_deb)}")
    assert "\n13. " in installed.run("su nobody -s /bin/sh -c 'cd /tmp && nodeagent demo'").stdout


def test_the_commands_that_a_kept_demo_prints_work(installed: Machine, packages: Packages) -> None:
    installed.run(f"dpkg -i {installed.put(packages.demo_deb)}")
    installed.run("systemd-run --quiet --unit=demo sh -c 'exec nodeagent demo --keep >/srv/demo.txt'")
    until(lambda: "$EDITOR" in installed.says("cat /srv/demo.txt"), "the demo prints its commands", 90.0)
    lines = [line.strip() for line in installed.says("cat /srv/demo.txt").splitlines()]
    commands = [line for line in lines if line.startswith("nodeagent --root ")]
    assert [line.split()[3] for line in commands] == ["status", "scan", "explain", "config"]
    for command in commands:
        assert installed.run(command, check=False).returncode in (0, 3), command


def test_an_upgrade_of_both_packages_keeps_the_demo(
    installed: Machine, packages: Packages, newer: Packages
) -> None:
    installed.run(f"dpkg -i {installed.put(packages.demo_deb)}")
    installed.run(f"apt-get install -y {installed.put(newer.deb)} {installed.put(newer.demo_deb)}")
    assert installed.says("dpkg-query -W -f '${Status} ${Version}' nodeagent-demo") == (
        "install ok installed 99.0.0-1"
    )
    assert installed.run("nodeagent demo --help").stdout


def test_a_demo_of_another_build_is_refused(shared: Machine, newer: Packages) -> None:
    refused = shared.run(f"dpkg -i {shared.put(newer.demo_deb)}", check=False)
    assert refused.returncode
    assert "nodeagent-demo depends on nodeagent (= 99.0.0-1)" in refused.stderr
