# SPDX-License-Identifier: Apache-2.0
"""The command line: parser, exit codes, and errors as two lines. Answers go to stdout, messages to stderr.

Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 something is wrong on the node.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from nodeagent import __version__, config
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.base.journalstream import is_journal
from nodeagent.cli import output, verbs


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Never shows a traceback for what a user can mend."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ConfigError as error:
        return _complain(error, output.USAGE)
    except NodeagentError as error:
        return _complain(error, output.FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return output.FINE
    except KeyboardInterrupt:
        return output.FAILED


class _Version(argparse.Action):
    """Reads the bundled names only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nodeagent.kernel import pciids

        print(f"nodeagent {__version__}\nbundled pci.ids of {pciids.bundled_date() or 'no known date'}")
        parser.exit()


def _complain(error: NodeagentError, code: int) -> int:
    """Below systemd with the priority of an error: a daemon that does not start is found with ``-p err``."""
    prefix = "<3>" if is_journal(os.environ, sys.stderr) else ""
    for line in f"nodeagent: {error.lines()}".splitlines():
        print(f"{prefix}{line}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """All verbs and flags; man page and completions are made from it, too."""
    top = argparse.ArgumentParser(
        prog="nodeagent",
        description="Owns the devices of this node that virtual machines are given.",
        epilog="Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 something is wrong on the node.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version")
    top.add_argument("--root", default="/", metavar="DIR", help="use the host below DIR instead of /")
    known = top.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name, verb, add_arguments, help_text in (
        ("run", verbs.run, _add_run, "run the daemon"),
        ("scan", verbs.scan, _add_common, "show all devices and what becomes of them"),
        (
            "plan",
            verbs.plan,
            _add_plan,
            "show what would be done to mdevs, vGPUs and VFs, and why; change nothing",
        ),
        (
            "explain",
            verbs.explain,
            _add_explain,
            "say why a device is offered as it is or not at all, or whether a machine can have what it wants",
        ),
        ("status", verbs.status, _add_common, "ask the running daemon how it is"),
        (
            "cluster",
            verbs.cluster,
            _add_cluster,
            "check what this node may do at the API server, and what it would find there; change nothing",
        ),
        (
            "config",
            verbs.configuration,
            _add_config,
            "show the settings in force, and where each comes from",
        ),
        ("demo", verbs.demo, _add_demo, "run the daemon on a made-up host with a stand-in kubelet"),
    ):
        verb_parser = known.add_parser(
            name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}."
        )
        verb_parser.set_defaults(run=verb)
        add_arguments(verb_parser)
    return top


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end if a file is wrong; do not go on with the last good settings",
    )
    config.add_flags(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    config.add_flags(parser, "a daemon that answers goes by its own; else, and with --host, these count: ")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "device",
        metavar="DEVICE",
        help="a PCI address, such as 0000:3b:00.0 or 3b:00.0, the UUID of an mdev, or vmi for a machine",
    )
    parser.add_argument(
        "machine",
        metavar="FILE",
        nargs="?",
        help="after vmi: a VirtualMachineInstance or VirtualMachine as YAML or JSON, or NAMESPACE/NAME of "
        "one in the cluster, asked for with --kubeconfig, $KUBECONFIG, or what the settings name",
    )
    parser.add_argument(
        "--cr",
        metavar="FILE",
        help="after vmi: the KubeVirt CR as YAML or JSON; "
        "default: the cluster's, if it is asked, or the daemon's",
    )
    parser.add_argument("--host", metavar="FILE", help="explain on a host saved with: nodeagent scan -o json")
    _add_common(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="FILE", help="plan for a host saved with: nodeagent scan -o json")
    parser.add_argument(
        "--machine-id", metavar="ID", help="of that host; default: /etc/machine-id of this one"
    )
    _add_common(parser)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("check",), help="check: list rights and objects, and what is missing"
    )
    _add_common(parser)


def _add_config(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--check",
        metavar="FILE",
        nargs="?",
        const="",
        help="only check this file, or all that a start reads",
    )
    choice.add_argument("--schema", action="store_true", help="print the JSON schema of the file")
    _add_common(parser)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="leave it running at the end, to play with")
    parser.add_argument(
        "--page", action="store_true", help="serve the status page, too, and leave it running at the end"
    )
