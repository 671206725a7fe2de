# SPDX-License-Identifier: Apache-2.0
"""What one can write: verbs, arguments, examples, exit codes. Man page and completions are made from it.

The help of a verb fits a screen. Only ``run`` and ``config`` show the settings; the others take them, too.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from nodeagent import __version__, config
from nodeagent.cli import output, verbs
from nodeagent.model.ids import VFIO_PCI
from nodeagent.policy import naming

_WIDTH = 79
_SAVED = "a host saved by scan -o json (- is stdin)"
_CODES = {output.FINE: "fine", output.FAILED: "failed", output.USAGE: "usage or configuration"}
_WIDE_FORMS = (output.TEXT, output.WIDE, output.NAME, *output.FORMS[1:])
_CODES_OF_ALL = "Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 something is wrong."
_CHOICE = re.compile(r"(?P<what>.*)invalid choice: '(?P<word>.*)' \(choose from (?P<known>.*)\)")
_WORD = re.compile(r"[a-z-]+")
_SETTINGS = "Takes the flags of run, too; a daemon that answers goes by its own settings."


class _Version(argparse.Action):
    """Reads the bundled names only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nodeagent.kernel import pci_ids

        print(f"nodeagent {__version__}\nbundled pci.ids of {pci_ids.bundled_date() or 'no known date'}")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in two lines, as all verbs do, in place of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """What cannot be meant, and what can. :raises SystemExit: always."""
        what, hint = _mistake(message, self.prog)
        output.say(f"nodeagent: {what}\n{hint}")
        self.exit(output.USAGE)

    def format_help(self) -> str:
        """The help, without the line of argparse that only says that a verb is one: a screen is short."""
        return super().format_help().replace("  VERB\n", "", 1)


def _mistake(message: str, command: str) -> tuple[str, str]:
    """What argparse says, in two lines; a word that is none of several is answered with the nearest."""
    wrong = _CHOICE.search(message)
    if wrong is None:
        return message, f"{command} --help shows what can be written"
    return f'{wrong["what"]}"{wrong["word"]}" is unknown', naming.nearest(
        wrong["word"], _WORD.findall(wrong["known"])
    )


class Verb(NamedTuple):
    """One word after ``nodeagent``.

    ``more`` is what its own help says beyond the summary, ``wrong`` what exit code 3 means, if it ever comes.
    """

    name: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    summary: str
    examples: tuple[str, ...]
    more: str = ""
    wrong: str = ""

    @property
    def codes(self) -> Mapping[int, str]:
        """Exit codes and what they mean."""
        return _CODES | ({output.WRONG: self.wrong} if self.wrong else {})


def parser(written: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """All verbs and flags; of verbs that are not among the ``written`` words, the names alone.

    A verb has dozens of flags, and the daemon would have those of all in its memory.
    """
    top = _Parser(
        prog="nodeagent",
        description="Owns the devices of this node that virtual machines are given.",
        epilog=_CODES_OF_ALL,
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
    parser.set_defaults(run=verb.run)
    parser.add_argument("--root", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    verb.add_arguments(parser)


def _after(verb: Verb) -> Iterator[str]:
    yield "examples:"
    yield from (f"  nodeagent {example}" for example in verb.examples)
    codes = ", ".join(f"{code} {meaning}" for code, meaning in verb.codes.items())
    yield f"\n{textwrap.fill(f'Exit codes: {codes}.', _WIDTH)}"


def _show_help(options: argparse.Namespace) -> int:
    """Print the help of a verb, or that of all."""
    parser().parse_args([*filter(None, [options.verb]), "--help"])
    return output.FINE  # pragma: no cover  argparse ends the process


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="end if a file is wrong; no last good settings")
    config.add_flags(parser, "they win over the environment and the files")


def _add_form(parser: argparse.ArgumentParser, forms: tuple[str, ...] = output.FORMS) -> None:
    words = f"{', '.join(forms[:-1])} or {forms[-1]}"
    parser.add_argument("-o", "--output", choices=forms, default=output.TEXT, metavar="FORM", help=words)


def _add_common(parser: argparse.ArgumentParser, forms: tuple[str, ...] = output.FORMS) -> None:
    _add_form(parser, forms)
    config.add_flags(parser)
    parser.description = f"{parser.description}\n{_SETTINGS}"


def _add_scan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "patterns", metavar="ADDRESS", nargs="*", help="only these; * and ? stand for anything"
    )
    parser.add_argument(
        "--class",
        metavar="CODE",
        dest="classes",
        action="append",
        default=[],
        help="only this class: 2 to 6 digits",
    )
    parser.add_argument("--offered", action="store_true", help="only what the kubelet is told of")
    parser.add_argument("--bridges", action="store_true", help="bridges, too")
    parser.add_argument("--host", metavar="FILE", help=f"go by {_SAVED}")
    _add_common(parser, _WIDE_FORMS)


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-w", "--watch", action="store_true", help="again whenever something differs")
    _add_common(parser, _WIDE_FORMS)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        metavar="NAME",
        help="PCI address, UUID, resource, path, pod, rule, or vmi",
    )
    parser.add_argument(
        "machine",
        metavar="FILE",
        nargs="?",
        help="after vmi: YAML, JSON, or NAMESPACE/NAME in the cluster",
    )
    parser.add_argument("--cr", metavar="FILE", help="after vmi: the KubeVirt CR as YAML or JSON")
    parser.add_argument("--host", metavar="FILE", help=f"go by {_SAVED}")
    _add_common(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help="what would change if this were config.yaml (- is stdin)"
    )
    parser.add_argument("--host", metavar="FILE", help=f"plan for {_SAVED}")
    parser.add_argument(
        "--machine-id", metavar="ID", help="of that host; default: /etc/machine-id of this one"
    )
    _add_common(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="FILE", help=f"judge {_SAVED}")
    _add_common(parser)


def _add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="PCI address, pattern of some, or vendor:device"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would become of it; change nothing")
    _add_common(parser)


def _add_bind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--driver", metavar="NAME", default=VFIO_PCI, help="a variant of vfio-pci instead")
    parser.add_argument(
        "--at-boot", action="store_true", help="write files for the next boot; bind nothing now"
    )
    _add_release(parser)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("check",), help="list rights and objects, and what is missing")
    _add_common(parser)


def _add_config(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--check",
        metavar="FILE",
        nargs="?",
        const="",
        help="only check this file (- is stdin), or all that a start reads",
    )
    choice.add_argument(
        "--from",
        dest="translated",
        metavar="FILE",
        help="print rules made of a KubeVirt CR, or of a file of the sriov-network-device-plugin",
    )
    choice.add_argument("--schema", action="store_true", help="print the JSON schema of the file")
    _add_form(parser)
    config.add_flags(parser, "they win over the environment and the files, but not over a running daemon's")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="leave it running at the end, to play with")
    parser.add_argument(
        "--page", action="store_true", help="serve the status page, too, and leave it running at the end"
    )


def _add_help(parser: argparse.ArgumentParser) -> None:
    names = [verb.name for verb in VERBS[:-1]]
    parser.add_argument("verb", metavar="VERB", nargs="?", choices=names, help="one of the verbs")


VERBS = (
    Verb(
        "run",
        verbs.run,
        _add_run,
        "run the daemon",
        ("run", "run --log-level debug", "--root /tmp/host run --http-listen 127.0.0.1:9999"),
    ),
    Verb(
        "scan",
        verbs.scan,
        _add_scan,
        "show all devices and what becomes of them",
        ("scan --offered", "scan '3b:*' -o wide", "scan --class 03 -o name", "scan -o json > host.json"),
    ),
    Verb(
        "plan",
        verbs.plan,
        _add_plan,
        "show what would be done to devices, and why",
        ("plan", "plan --config new.yaml", "plan --mdevs-manage true", "plan --host host.json"),
        more="; change nothing",
    ),
    Verb(
        "explain",
        verbs.explain,
        _add_explain,
        "say what becomes of a device, resource, pod or rule, and why",
        (
            "explain 3b:00.0 --host host.json",
            "explain config.yaml:12",
            "explain vmi machine.yaml --cr kubevirt.yaml",
        ),
        more=", or whether a virtual machine can have what it wants",
    ),
    Verb(
        "status",
        verbs.status,
        _add_status,
        "ask the running daemon how it is",
        ("status", "status -o wide --watch", "status -o json"),
        wrong="there is a problem",
    ),
    Verb(
        "bind",
        verbs.bind,
        _add_bind,
        "bind functions to a VFIO driver, with their IOMMU groups",
        ("bind 3b:00.0 --dry-run", "bind '3b:*' 10de:1eb8", "bind --at-boot 3b:00.0"),
        more=", until they are released, or the host boots",
        wrong="something is not done",
    ),
    Verb(
        "release",
        verbs.release,
        _add_release,
        "give functions that nodeagent has bound their own drivers back",
        ("release 3b:00.0", "release '3b:*' --dry-run"),
        more=", with their IOMMU groups",
        wrong="something is not done",
    ),
    Verb(
        "check",
        verbs.check,
        _add_check,
        "say whether this host can give devices to virtual machines",
        ("check", "check -o json", "check --host host.json"),
        more=", and what to do where it cannot; change nothing",
        wrong="something is wrong",
    ),
    Verb(
        "cluster",
        verbs.cluster,
        _add_cluster,
        "check what this node may do at the API server",
        ("cluster check", "cluster check --kubeconfig /etc/nodeagent/kubeconfig"),
        more=", and what it would find there; change nothing",
        wrong="something is missing",
    ),
    Verb(
        "config",
        verbs.configuration,
        _add_config,
        "show the settings in force, and where each comes from",
        ("config", "config --check config.yaml", "config --from kubevirt.yaml", "config --schema"),
        wrong="the newest file is not in force",
    ),
    Verb(
        "demo",
        verbs.demo,
        _add_demo,
        "run the daemon on a made-up host with a stand-in kubelet",
        ("demo", "demo --page"),
    ),
    Verb("help", _show_help, _add_help, "show the help of a verb", ("help explain",)),
)
