# SPDX-License-Identifier: Apache-2.0
"""The argument parser of the command line: commands, examples, exit codes. Man page and shell completions are
generated from it.

Each command is a module of the same name with ``add_arguments`` and ``run``. The module of a command is
imported only if the command's name is in the arguments: each command has dozens of flags, and the daemon
would hold all of these in its memory.

The help of a command fits on a screen. Only ``run`` and ``config`` list the flags for settings in their help;
the other commands accept them, too.
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
    """The action of ``--version``: reads the date of the bundled pci.ids only if the version is requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nodeagent.kernel import pci_ids

        print(f"nodeagent {__version__}\nbundled pci.ids of {pci_ids.bundled_date() or 'no known date'}")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in two lines, as all commands do, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print the wrong argument and the valid choices. :raises SystemExit: always."""
        what, hint = _mistake(message, self.prog)
        output.print_message(f"nodeagent: {what}\n{hint}")
        self.exit(output.USAGE)

    def format_help(self) -> str:
        """The help without argparse's line that only repeats the placeholder of the command."""
        return super().format_help().replace("  COMMAND\n", "", 1)


def _mistake(message: str, command: str) -> tuple[str, str]:
    """The message of argparse in two lines; for an unknown word the hint names the nearest choice."""
    wrong = _CHOICE.search(message)
    if wrong is None:
        return message, f"see {command} --help"
    return f'{wrong["what"]}"{wrong["word"]}" is unknown', naming.suggest(
        wrong["word"], _WORD.findall(wrong["known"])
    )


class Command(NamedTuple):
    """One command. ``summary`` and ``more`` are its help; ``wrong``: the meaning of its exit code 3."""

    name: str
    summary: str
    examples: tuple[str, ...]
    more: str = ""
    wrong: str = ""

    @property
    def codes(self) -> Mapping[int, str]:
        """Exit codes and their meanings."""
        return _CODES | ({output.WRONG: self.wrong} if self.wrong else {})


COMMANDS = (
    Command(
        "run",
        "run the daemon",
        ("run", "run --log-level debug", "--root /tmp/host run --http-listen 127.0.0.1:9999"),
    ),
    Command(
        "scan",
        "show all devices, with their resources or why they have none",
        ("scan --offered", "scan '3b:*' -o wide", "scan --class 03 -o name", "scan -o json > host.json"),
    ),
    Command(
        "plan",
        "show the changes that would be made to the host, and why",
        ("plan", "plan --config new.yaml", "plan --mdevs-manage true", "plan --host host.json"),
        more="; change nothing",
    ),
    Command(
        "explain",
        "explain the state of a device, resource, pod or rule",
        (
            "explain 3b:00.0 --host host.json",
            "explain config.yaml:12",
            "explain vmi vm.yaml --cr kubevirt.yaml",
        ),
        more=", or whether a VM can start on this node",
    ),
    Command(
        "status",
        "show the status of the running daemon",
        ("status", "status -o wide --watch", "status -o json"),
        wrong="there is a problem",
    ),
    Command(
        "bind",
        "bind functions to a VFIO driver, with their IOMMU groups",
        ("bind 3b:00.0 --dry-run", "bind '3b:*' 10de:1eb8", "bind --at-boot 3b:00.0"),
        more=", until they are released or the host reboots",
        wrong="a change was not made",
    ),
    Command(
        "release",
        "restore the former drivers of functions that bind has bound",
        ("release 3b:00.0", "release '3b:*' --dry-run"),
        more=", with their IOMMU groups",
        wrong="a change was not made",
    ),
    Command(
        "check",
        "check whether this host can assign devices to VMs",
        ("check", "check -o json", "check --host host.json"),
        more=", and print how to fix problems; change nothing",
        wrong="a check has failed",
    ),
    Command(
        "cluster",
        "check the permissions of this node at the API server",
        ("cluster check", "cluster check --kubeconfig /etc/nodeagent/kubeconfig"),
        more=", and the objects that it needs there; change nothing",
        wrong="a permission or object is missing",
    ),
    Command(
        "config",
        "show the settings in force, and where each comes from",
        ("config", "config --check config.yaml", "config --from kubevirt.yaml", "config --schema"),
        wrong="the newest file is not in force",
    ),
    Command(
        "bug-report",
        "print all facts that a bug report needs",
        ("bug-report > report.json",),
        more=": host, status, settings, checks and versions, as JSON; change nothing",
    ),
    Command(
        "demo",
        "run the daemon on a simulated host with a fake kubelet",
        ("demo", "demo --page"),
    ),
    Command("help", "show the help of a command", ("help explain",)),
)


def parser(written: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser; only commands that are among the ``written`` words have their arguments."""
    top = _Parser(
        prog="nodeagent",
        description="Manages the devices of this node that are assigned to VMs.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version")
    top.add_argument("--root", default="/", metavar="DIR", help="use DIR as the root directory of the host")
    known = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        added = known.add_parser(command.name, help=command.summary)
        if written is None or command.name in written:
            _add(added, command)
    return top


def _add(parser: argparse.ArgumentParser, command: Command) -> None:
    about = f"{command.summary[0].upper()}{command.summary[1:]}{command.more}."
    parser.description = textwrap.fill(about, _WIDTH, break_on_hyphens=False)
    parser.epilog = "\n".join(_after(command))
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, max_help_position=26)
    parser.add_argument("--root", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    module = import_module(f"nodeagent.cli.{command.name.replace('-', '_')}")
    parser.set_defaults(run=module.run)
    module.add_arguments(parser)


def _after(command: Command) -> Iterator[str]:
    yield "examples:"
    yield from (f"  nodeagent {example}" for example in command.examples)
    codes = ", ".join(f"{code} {meaning}" for code, meaning in command.codes.items())
    yield f"\n{textwrap.fill(f'Exit codes: {codes}.', _WIDTH)}"
