# SPDX-License-Identifier: Apache-2.0
"""The command line in this process: each command, its output, exit codes, errors as two lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

from nodeagent import __version__, config
from nodeagent.cli import main, status
from nodeagent.kernel import pci_ids
from nodeagent.model import plain
from nodeagent.model.problem import ProblemCode, wrong
from nodeagent.sim.host import SimulatedHost
from tests.facts import contains, names
from tests.http.serving import serve_document
from tests.render.statuses import WELL
from tests.sim import hosts

ONE = hosts.address(0)
HEADING = {"apiVersion": "nodeagent/v1", "kind": "Status"}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.many(tmp_path / "host", 2)


@pytest.fixture
def run(host: SimulatedHost, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command below the simulated host; exit code, stdout, stderr."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main.main(["--root", host.directory, *arguments])
        return code, *capsys.readouterr()

    return command


def configure(host: SimulatedHost, text: str) -> Path:
    file = Path(host.path("/etc/nodeagent/config.yaml"))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@contextmanager
def daemon(host: SimulatedHost, answer: Any) -> Iterator[None]:
    """A socket that gives this document, in a thread with a loop of its own."""
    with anyio.from_thread.start_blocking_portal() as portal:
        path = host.path(config.load(config.Sources(host.directory, {}, {})).status.socket)
        task = portal.start_task_soon(serve_document, path, lambda: answer)
        portal.call(anyio.wait_all_tasks_blocked)
        yield
        task.cancel()


def is_notice(line: str, host: SimulatedHost) -> bool:
    """True for the line that says that no daemon was asked."""
    socket = host.path("/run/nodeagent/status.sock")
    return line.startswith("nodeagent: ") and contains(line, socket, "No such file or directory")


def test_where_no_daemon_could_start_status_says_what_is_wrong_with_the_configuration(
    run: Run, host: SimulatedHost
) -> None:
    host.write_file("/etc/nodeagent/config.yaml", "discovry: {}\n")
    code, _, err = run("status")
    assert code == 1
    names(err.splitlines()[1], "configuration", '"discovery"')


def test_scan_shows_all_devices(run: Run, host: SimulatedHost) -> None:
    code, out, err = run("scan")
    assert code == 0
    (line,) = err.splitlines()
    assert is_notice(line, host)
    assert all(hosts.address(number) in out for number in (0, 1))


def test_a_saved_scan_is_explained_as_the_host_was(run: Run, host: SimulatedHost, tmp_path: Path) -> None:
    code, out, _ = run("scan", "-o", "json")
    assert code == 0
    saved = tmp_path / "saved.json"
    saved.write_text(out)
    host.unplug(ONE)
    assert run("explain", ONE)[0] == 1
    code, out, _ = run("explain", ONE, "--host", str(saved))
    assert code == 0
    assert out.startswith(ONE)


def test_costly_facts_are_read_of_the_present_host_and_never_for_a_saved_one(
    run: Run, host: SimulatedHost, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(run("scan", "-o", "json")[1])
    host.write(ONE, "aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 2")
    assert "2 fatal PCIe errors" in run("explain", ONE)[1]
    assert "fatal" not in run("explain", ONE, "--host", str(saved))[1]


def test_explain_tells_the_same_to_people_and_programs(run: Run, host: SimulatedHost) -> None:
    host.bind(ONE, "nouveau")
    code, text, _ = run("explain", ONE.removeprefix("0000:"))
    assert code == 0
    assert "nouveau" in text
    code, out, _ = run("explain", ONE, "-o", "json")
    document = json.loads(out)
    assert (document["address"], document["driver"]) == (ONE, "nouveau")
    assert document["verdict"] in text


@pytest.mark.parametrize(
    ("arguments", "code", "what", "hint"),
    [
        (("explain", "banana"), 2, "banana", "nvidia.com/"),
        (("explain", "0000:ff:1f.7"), 1, "0000:ff:1f.7", "nodeagent scan"),
        (("explain", ONE, "--host", "/no/such.json"), 2, "/no/such.json", "nodeagent scan -o json"),
        (("status",), 1, "/run/nodeagent/status.sock", "nodeagent run --root /"),
        (("scan", "--timing-settle", "soon"), 2, "timing.settle", ""),
        (("config", "--check", "/no/such.yaml"), 2, "/no/such.yaml", "path"),
    ],
    ids=["no address", "no device", "no saved host", "no daemon", "bad flag", "no file"],
)
def test_a_mistake_is_two_lines_on_stderr(
    run: Run, arguments: tuple[str, ...], code: int, what: str, hint: str
) -> None:
    found, out, err = run(*arguments)
    first, second = err.rstrip("\n").split("\n")
    assert (found, out) == (code, "")
    assert first.startswith("nodeagent: ")
    assert what in first
    assert hint in second


def test_a_saved_host_that_is_none_is_a_mistake(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    code, _, err = run("explain", ONE, "--host", str(tmp_path / "x.json"))
    assert code == 2
    names(err.splitlines()[0], "kind", "Host")


def test_status_of_a_healthy_daemon(run: Run, host: SimulatedHost) -> None:
    document = plain.dump(WELL)
    with daemon(host, document):
        code, text, _ = run("status")
        assert code == 0
        assert text == f"{status.text(WELL)}\n"
        code, out, _ = run("status", "-o", "json")
        assert (code, json.loads(out)) == (0, HEADING | document)


def test_status_with_problems_has_a_code_of_its_own(run: Run, host: SimulatedHost) -> None:
    told = WELL.with_findings([wrong(ProblemCode.CHANGE, "a/b", "a/b: something is wrong")])
    with daemon(host, plain.dump(told)):
        code, text, _ = run("status")
    assert code == 3
    assert text.endswith(":\n  a/b: something is wrong\n")


@pytest.mark.parametrize("document", [None, [], {}, {**plain.dump(WELL), "pid": "seven"}], ids=str)
def test_a_status_of_another_make_costs_two_lines(run: Run, host: SimulatedHost, document: Any) -> None:
    with daemon(host, document):
        code, out, err = run("status")
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first.startswith("nodeagent: ")
    names(second, "version")


@pytest.mark.parametrize("document", [None, [], {}], ids=str)
def test_what_is_no_status_is_not_printed_as_one(run: Run, host: SimulatedHost, document: Any) -> None:
    with daemon(host, document):
        code, out, err = run("status", "-o", "json")
    assert (code, out, len(err.splitlines())) == (1, "", 2)


def test_the_plain_data_of_a_daemon_of_another_make_is_given_as_it_is(run: Run, host: SimulatedHost) -> None:
    document = {"of": "another make", "problems": ["something"]}
    with daemon(host, document):
        code, out, _ = run("status", "-o", "json")
    assert (code, json.loads(out)) == (3, HEADING | document)


def test_what_a_newer_daemon_says_beyond_is_passed_over(run: Run, host: SimulatedHost) -> None:
    document = {**plain.dump(WELL), "weather": "fine"}
    with daemon(host, document):
        assert run("status")[:2] == (0, f"{status.text(WELL)}\n")
        assert json.loads(run("status", "-o", "json")[1]) == HEADING | document


@pytest.mark.parametrize("answer", [None, {}, {"format": "nodeagent-snapshot/v1"}], ids=str)
def test_an_answer_that_cannot_be_read_is_none_and_says_why(
    run: Run, host: SimulatedHost, answer: Any
) -> None:
    with daemon(host, answer):
        code, out, err = run("scan")
    assert (code, ONE in out) == (0, True)
    (line,) = err.splitlines()
    names(line, host.path("/run/nodeagent/status.sock"))
    assert not is_notice(line, host)


def test_config_shows_values_and_where_they_come_from(run: Run, host: SimulatedHost) -> None:
    configure(host, "apiVersion: nodeagent/v1\ntiming: {settle: 3s}\n")
    code, text, _ = run("config", "--timing-resync", "7s")
    assert code == 0
    assert "config.yaml:2" in text
    _, out, _ = run("config", "-o", "json", "--timing-resync", "7s")
    values = json.loads(out)["settings"]
    assert values["timing.settle"]["value"] == "3s"
    assert values["timing.resync"] == {"value": "7s", "source": "flag --timing-resync"}


def test_config_checks_a_file(run: Run, host: SimulatedHost) -> None:
    file = configure(host, "apiVersion: nodeagent/v1\n")
    assert run("config", "--check", str(file))[:2] == (0, f"{file}: fine\n")
    file.write_text("apiVersion: nodeagent/v1\ntming: {}\n")
    code, _, err = run("config", "--check", str(file))
    assert code == 2
    assert f"{file}:2" in err
    assert "timing" in err


def test_config_prints_the_schema(run: Run) -> None:
    code, out, _ = run("config", "--schema")
    assert code == 0
    assert "resources" in json.loads(out)["properties"]


def test_warnings_go_to_stderr(run: Run, host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_TIMING_SETLE", "3s")
    code, out, err = run("config", "-o", "json")
    assert code == 0
    first, second, *_ = err.splitlines()
    assert is_notice(first, host)
    names(second, "NODEAGENT_TIMING_SETLE")
    assert json.loads(out)["warnings"]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    version, database = capsys.readouterr().out.splitlines()
    assert version == f"nodeagent {__version__}"
    assert contains(database, "pci.ids", pci_ids.bundled_date())


def plain_help(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """The help of a command."""
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    return capsys.readouterr().out


def test_the_help_of_a_verb_begins_with_what_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    usage, about, *_ = plain_help(capsys, "plan").split("\n\n")
    assert " ".join(usage.split()) == (
        "usage: nodeagent plan [-h] [--config FILE] [--host FILE] [--machine-id ID] [-o FORM]"
        " [--SETTING VALUE ...]"
    )
    assert about.strip()
    assert about not in plain_help(capsys, "scan")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([], "nodeagent --help"),
        (["dance"], "plan"),
        (["scan", "--no-such-flag"], "nodeagent --help"),
        (["scan", "-o", "xml"], "wide"),
    ],
    ids=str,
)
def test_wrong_usage_is_exit_code_two(
    arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    what, hint = capsys.readouterr().err.splitlines()
    assert what.startswith("nodeagent: ")
    names(hint, advice)


def test_a_terminal_without_our_signs_gets_escapes(host: SimulatedHost) -> None:
    host.write_file("/etc/nodeagent/config.yaml", 'aliases: {a.b/c: a.b/d}\nmdevs: {types: ["T4\u00e9"]}\n')
    command = [sys.executable, "-m", "nodeagent", "--root", host.directory, "config"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert is_notice(line, host)
    assert "T4\\xe9" in done.stdout


def test_an_error_below_systemd_has_the_priority_of_one(host: SimulatedHost, tmp_path: Path) -> None:
    configure(host, "nonsense: 1")
    with (tmp_path / "journal").open("w+") as stream:
        info = os.fstat(stream.fileno())
        subprocess.run(
            [sys.executable, "-m", "nodeagent", "--root", host.directory, "run"],
            env=os.environ | {"JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}"},
            stderr=stream,
            check=False,
        )
        stream.seek(0)
        what, *hint = stream.read().splitlines()
    assert what.startswith("<3>nodeagent: ")
    names(what, "nonsense")
    assert [line[:3] for line in hint] == ["<3>"]
