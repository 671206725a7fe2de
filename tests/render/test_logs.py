# SPDX-License-Identifier: Apache-2.0
"""Every event is explained: journald takes the catalog; neither page nor texts drift from the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nodeagent.base import log
from nodeagent.render import logs

ENTRY = re.compile(r"^-- ([0-9a-f]{32})$", re.MULTILINE)


def test_the_catalog_has_each_message_id_once_and_no_other() -> None:
    ids = ENTRY.findall(logs.catalog())
    assert ids == [event.id for event in log.catalogue()]
    assert len(set(ids)) == len(ids)


def test_a_text_speaks_only_of_fields_that_its_event_always_has() -> None:
    for one in logs.explained():
        fields = logs.PLACEHOLDER.findall(" ".join((one.subject, one.means, one.do, *one.run)))
        assert {field.lower() for field in fields} <= set(one.event.fields), one.event.name
        assert not re.search(r"@(?!NODEAGENT_[A-Z_]+@)\w+@", " ".join((one.subject, one.means, one.do)))


def test_a_text_is_short_enough_for_three_in_the_morning() -> None:
    for one in logs.explained():
        assert len(one.subject) <= 70, one.event.name
        for text in (one.means, one.do):
            assert 1 <= len(textwrap.wrap(text, logs.WIDTH)) <= 5, one.event.name
            assert text.endswith("."), one.event.name


def test_what_needs_a_person_names_a_command() -> None:
    wanted = [one for one in logs.explained() if one.event.level > log.STARTED.level]
    quiet = {log.SUBSYSTEM_RECOVERED.name, log.EVENTS_UNAVAILABLE.name}  # there is nothing to look at
    assert [one.event.name for one in wanted if not one.run and one.event.name not in quiet] == []


def test_no_advice_could_hurt_a_host() -> None:
    harmless = re.compile(
        r"(journalctl|nodeagent|systemctl status|ls|df|cat|lspci|dmesg|modprobe vfio-pci)\b"
    )
    for one in logs.explained():
        assert all(harmless.match(command) for command in one.run), one.event.name


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="journalctl is not installed")
def test_journalctl_takes_the_catalog_whole(tmp_path: Path) -> None:
    for folder in ("usr/lib/systemd/catalog", "var/lib/systemd/catalog"):
        (tmp_path / folder).mkdir(parents=True)
    logs.main(["catalog", str(tmp_path / "usr/lib/systemd/catalog/nodeagent.catalog")])
    root = f"--root={tmp_path}"
    made = subprocess.run(
        ["journalctl", "--update-catalog", root], capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stderr) == (0, "")
    told = subprocess.run(["journalctl", "--dump-catalog", root], capture_output=True, text=True, check=True)
    assert sorted(ENTRY.findall(told.stdout)) == sorted(event.id for event in log.catalogue())
    assert told.stdout.count("Documentation: man:nodeagent(8) file:") == len(log.catalogue())


def test_the_daemon_never_loads_the_texts() -> None:
    code = "import sys, nodeagent.app, nodeagent.cli.run; print('nodeagent.render.logs' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
