# SPDX-License-Identifier: Apache-2.0
"""The argument parser: commands, examples, exit codes. Man page and shell completions are generated from it.

Each command is a module of the same name with ``add_arguments`` and ``run``. It is imported only if its name
is in the arguments: each command has dozens of flags, and the daemon would hold all of them in its memory.

The help of a command fits on a screen. Only ``run`` and ``config`` list the settings; the other commands take
them, too.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple, NoReturn

from nodeagent import __version__
from nodeagent.cli import output
from nodeagent.policy import naming

_WIDTH = 79
_CODES = {output.FINE: "fine", output.FAILED: "failed", output.USAGE: "usage or configuration"}
_CHOICE = re.compile(r"(?P<what>.*)invalid choice: '(?P<word>.*)' \(choose from (?P<known>.*)\)")
_WORD = re.compile(r"[a-z-]+")


class _Version(argparse.Action):
    """Reads the date of the bundled pci.ids only if the version is requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nodeagent.kernel import pci_ids

        print(f"nodeagent {__version__}\nbundled pci.ids of {pci_ids.bundled_date() or 'no known date'}")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in two lines, as all commands do, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake and the valid choices. :raises SystemExit: always."""
        what, hint = _mistake(message, self.prog)
        output.print_message(f"nodeagent: {what}\n{hint}")
        self.exit(output.USAGE)

    def format_help(self) -> str:
        """The help without argparse's line that only repeats the metavar: a screen is short."""
        return super().format_help().replace("  VERB\n", "", 1)


def _mistake(message: str, command: str) -> tuple[str, str]:
    """The message of argparse in two lines; for an unknown word the hint names the nearest choice."""
    wrong = _CHOICE.search(message)
    if wrong is None:
        return message, f"{command} --help shows what can be written"
    return f'{wrong["what"]}"{wrong["word"]}" is unknown', naming.suggest(
        wrong["word"], _WORD.findall(wrong["known"])
    )


class Verb(NamedTuple):
    """One command. Its help is ``summary`` and ``more``; ``wrong`` is the text for exit code 3."""

    name: str
    summary: str
    examples: tuple[str, ...]
    more: str = ""
    wrong: str = ""

    @property
    def codes(self) -> Mapping[int, str]:
        """Exit codes and their meanings."""
        return _CODES | ({output.WRONG: self.wrong} if self.wrong else {})


VERBS = (
    Verb(
        "run",
        "run the daemon",
        ("run", "run --log-level debug", "--root /tmp/host run --http-listen 127.0.0.1:9999"),
    ),
    Verb(
        "scan",
        "show all devices, with their resources or why they have none",
        ("scan --offered", "scan '3b:*' -o wide", "scan --class 03 -o name", "scan -o json > host.json"),
    ),
    Verb(
        "plan",
        "show what would be done to devices, and why",
        ("plan", "plan --config new.yaml", "plan --mdevs-manage true", "plan --host host.json"),
        more="; change nothing",
    ),
    Verb(
        "explain",
        "explain the state of a device, resource, pod or rule",
        (
            "explain 3b:00.0 --host host.json",
            "explain config.yaml:12",
            "explain vmi machine.yaml --cr kubevirt.yaml",
        ),
        more=", or whether a VM can start on this node",
    ),
    Verb(
        "status",
        "ask the running daemon how it is",
        ("status", "status -o wide --watch", "status -o json"),
        wrong="there is a problem",
    ),
    Verb(
        "bind",
        "bind functions to a VFIO driver, with their IOMMU groups",
        ("bind 3b:00.0 --dry-run", "bind '3b:*' 10de:1eb8", "bind --at-boot 3b:00.0"),
        more=", until they are released, or the host boots",
        wrong="something is not done",
    ),
    Verb(
        "release",
        "give functions that nodeagent has bound their own drivers back",
        ("release 3b:00.0", "release '3b:*' --dry-run"),
        more=", with their IOMMU groups",
        wrong="something is not done",
    ),
    Verb(
        "check",
        "say whether this host can give devices to virtual machines",
        ("check", "check -o json", "check --host host.json"),
        more=", and what to do where it cannot; change nothing",
        wrong="something is wrong",
    ),
    Verb(
        "cluster",
        "check what this node may do at the API server",
        ("cluster check", "cluster check --kubeconfig /etc/nodeagent/kubeconfig"),
        more=", and what it would find there; change nothing",
        wrong="something is missing",
    ),
    Verb(
        "config",
        "show the settings in force, and where each comes from",
        ("config", "config --check config.yaml", "config --from kubevirt.yaml", "config --schema"),
        wrong="the newest file is not in force",
    ),
    Verb(
        "bug-report",
        "save all that a bug report needs",
        ("bug-report > report.json",),
        more=": host, status, settings, checks and versions, as JSON; change nothing",
    ),
    Verb(
        "demo",
        "run the daemon on a simulated host with a fake kubelet",
        ("demo", "demo --page"),
    ),
    Verb("help", "show the help of a verb", ("help explain",)),
)


def parser(written: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """All commands and flags; of commands that are not among the ``written`` words, the names alone."""
    top = _Parser(
        prog="nodeagent",
        description="Owns the devices of this node that virtual machines are given.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version")
    top.add_argument(
        "--root", default="/", metavar="DIR", help="use the host below DIR; before or after VERB"
    )
    known = top.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        added = known.add_parser(verb.name, help=verb.summary)
        if written is None or verb.name in written:
            _add(added, verb)
    return top


def _add(parser: argparse.ArgumentParser, verb: Verb) -> None:
    about = f"{verb.summary[0].upper()}{verb.summary[1:]}{verb.more}."
    parser.description = textwrap.fill(about, _WIDTH, break_on_hyphens=False)
    parser.epilog = "\n".join(_after(verb))
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, max_help_position=26)
    parser.add_argument("--root", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    command = import_module(f"nodeagent.cli.{verb.name.replace('-', '_')}")
    parser.set_defaults(run=command.run)
    command.add_arguments(parser)


def _after(verb: Verb) -> Iterator[str]:
    yield "examples:"
    yield from (f"  nodeagent {example}" for example in verb.examples)
    codes = ", ".join(f"{code} {meaning}" for code, meaning in verb.codes.items())
    yield f"\n{textwrap.fill(f'Exit codes: {codes}.', _WIDTH)}"
