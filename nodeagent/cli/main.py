# SPDX-License-Identifier: Apache-2.0
"""The command line: verbs, exit codes, and errors as two lines. Answers go to stdout, messages to stderr.

Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 something is wrong on the node. Each verb imports
what it needs when it runs, so that a short one starts quickly.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent import __version__, config
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.kernel.root import Root

if TYPE_CHECKING:
    from nodeagent.model.desired import Desired
    from nodeagent.policy.offer.turn import Decision

FINE, FAILED, USAGE, WRONG = 0, 1, 2, 3


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Never shows a traceback for what a user can mend."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ConfigError as error:
        return _complain(error, USAGE)
    except NodeagentError as error:
        return _complain(error, FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return FINE
    except KeyboardInterrupt:
        return FAILED


def _complain(error: NodeagentError, code: int) -> int:
    print(f"nodeagent: {error.lines()}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nodeagent",
        description="Owns the devices of this node that virtual machines are given.",
        epilog="Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 something is wrong on the node.",
    )
    parser.add_argument("--version", action="version", version=f"nodeagent {__version__}")
    parser.add_argument("--root", default="/", metavar="DIR", help="use the host below DIR instead of /")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name, verb, help_text in (
        ("run", _run, "run the daemon"),
        ("scan", _scan, "show all devices and what becomes of them"),
        ("plan", _plan, "show what would be done to mdevs, vGPUs and VFs, and why; change nothing"),
        ("explain", _explain, "say why a device is offered as it is, or not at all"),
        ("status", _status, "ask the running daemon how it is"),
        ("config", _config, "show the settings in force, and where each comes from"),
        ("demo", _demo, "run the daemon on a made-up host with a stand-in kubelet"),
    ):
        verb_parser = verbs.add_parser(name, help=help_text, description=help_text.capitalize() + ".")
        verb_parser.set_defaults(run=verb)
        _ARGUMENTS[name](verb_parser)
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")


def _add_scan(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    config.add_flags(parser)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "device",
        metavar="DEVICE",
        help="a PCI address, such as 0000:3b:00.0 or 3b:00.0, or the UUID of an mdev",
    )
    parser.add_argument("--host", metavar="FILE", help="explain on a host saved with: nodeagent scan -o json")
    _add_scan(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="FILE", help="plan for a host saved with: nodeagent scan -o json")
    parser.add_argument(
        "--machine-id", metavar="ID", help="of that host; default: /etc/machine-id of this one"
    )
    _add_scan(parser)


def _add_config(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", metavar="FILE", help="only check this file")
    choice.add_argument("--schema", action="store_true", help="print the JSON schema of the file")
    _add_scan(parser)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="leave it running at the end, to play with")


_ARGUMENTS = {
    "run": config.add_flags,
    "scan": _add_scan,
    "plan": _add_plan,
    "explain": _add_explain,
    "status": _add_scan,
    "config": _add_config,
    "demo": _add_demo,
}


def _root(options: argparse.Namespace) -> Root:
    prefix = str(options.root)
    if not Path(prefix).is_dir():
        raise ConfigError(
            f"--root {prefix}: no such directory", "give the directory that holds sys/ and dev/"
        )
    return Root(str(Path(prefix).absolute()))


def _settings(options: argparse.Namespace, root: Root) -> tuple[config.Settings, Mapping[str, str]]:
    flags = config.flags_from(options)
    return config.load(config.Sources(root.prefix, flags, os.environ)), flags


def _run(options: argparse.Namespace) -> int:
    root = _root(options)
    if root.is_host and os.geteuid() != 0:
        raise ConfigError(
            "nodeagent run must be root: it serves sockets that only root may use",
            "start it with sudo, or try it out with: nodeagent demo",
        )
    loaded, flags = _settings(options, root)
    from nodeagent.base import log, logsinks, memory

    memory.begin_start()
    from nodeagent import app

    def set_log(wanted: config.Log) -> None:
        logsinks.setup(wanted.format, wanted.level, os.environ, sys.stderr)

    set_log(loaded.log)
    for warning in loaded.warnings:
        log.event(log.CONFIG_WARNING, text=warning)
    app.run(root, loaded, flags, os.environ, set_log)
    sys.stderr.flush()
    app.leave(FINE)
    return FINE


def _inspected(
    options: argparse.Namespace, device: str | None = None, loaded: config.Settings | None = None
) -> Decision:
    import anyio

    from nodeagent.agent import oneshot
    from nodeagent.model import host_json
    from nodeagent.model.ids import pci_address

    root = _root(options)
    given = loaded or _settings(options, root)[0]
    saved = getattr(options, "host", None)
    host = None if saved is None else host_json.load(_json_file(saved))
    address = pci_address(device) if device is not None else None

    async def look() -> Decision:
        decision = await oneshot.inspect(root, given, host)
        if address is not None and host is None:
            decision = await oneshot.with_hints(root, decision, address)
        return decision

    return anyio.run(look)


def _json_file(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}", "make one with: nodeagent scan -o json > FILE") from error


def _scan(options: argparse.Namespace) -> int:
    from nodeagent.model import host_json
    from nodeagent.render import scan

    decision = _inspected(options)
    if options.output == "json":
        return _print(json.dumps(host_json.dump(decision.snapshot.host), indent=1))
    return _print(scan.text(decision))


def _plan(options: argparse.Namespace) -> int:
    from nodeagent.agent import oneshot
    from nodeagent.policy.change import plan as changes
    from nodeagent.render import plan as shown

    root = _root(options)
    loaded, _ = _settings(options, root)
    for warning in loaded.warnings:
        print(f"nodeagent: {warning}", file=sys.stderr)
    seen = _inspected(options, loaded=loaded).snapshot
    record = oneshot.remembered(root) if options.host is None else None
    plan = changes.plan(oneshot.to_plan(seen, _machine_id(options, root, seen.desired), record))
    manage = seen.desired.mdevs.manage
    if options.output == "json":
        return _print(json.dumps(shown.document(plan, manage), indent=2))
    return _print(shown.text(plan, manage))


def _machine_id(options: argparse.Namespace, root: Root, desired: Desired) -> str:
    """Of the host that is planned for; "" where only VFs are planned, which go without."""
    from nodeagent.kernel import identity

    if options.machine_id is not None:
        if given := identity.written(options.machine_id):
            return given
        raise ConfigError(
            f'--machine-id: "{options.machine_id}" is no machine id',
            "give the 32 hexadecimal digits that stand in /etc/machine-id of that host",
        )
    found = identity.machine_id(root)
    unknown = "/etc/machine-id is empty or missing: which mdevs are ours cannot be told"
    if not found and (desired.mdevs.manage or not desired.sriov):
        raise ConfigError(unknown, "make it with systemd-machine-id-setup, or give --machine-id")
    if not found:
        print(f"nodeagent: {unknown}", file=sys.stderr)
    return found


def _explain(options: argparse.Namespace) -> int:
    from nodeagent.model.ids import mdev_uuid, pci_address
    from nodeagent.policy.offer import explain
    from nodeagent.render import explain as shown

    device = pci_address(options.device) or mdev_uuid(options.device)
    if device is None:
        raise ConfigError(
            f"{options.device} is neither a PCI address nor a UUID",
            "give one such as 0000:3b:00.0; nodeagent scan lists them",
        )
    told = explain.explain(device, _inspected(options, device))
    if told is None:
        raise NodeagentError(f"there is no device {device} on this host", "nodeagent scan lists all devices")
    if options.output == "json":
        return _print(json.dumps(shown.document(told), indent=2))
    return _print(shown.text(told))


def _status(options: argparse.Namespace) -> int:
    from nodeagent.base import jsonsocket
    from nodeagent.render import status

    root = _root(options)
    path = root.path(_settings(options, root)[0].status.socket)
    try:
        document = jsonsocket.ask(path)
    except (OSError, ValueError) as error:
        raise NodeagentError(
            f"no daemon answers at {path}: {getattr(error, 'strerror', None) or error}",
            "start it with: systemctl start nodeagent (or nodeagent run)",
        ) from error
    _print(json.dumps(document, indent=2) if options.output == "json" else status.text(document))
    return WRONG if document["problems"] else FINE


def _config(options: argparse.Namespace) -> int:
    from nodeagent.render import settings as shown

    if options.schema:
        return _print(json.dumps(config.schema(), indent=2))
    loaded = config.check_file(options.check) if options.check else _settings(options, _root(options))[0]
    for warning in loaded.warnings:
        print(f"nodeagent: {warning}", file=sys.stderr)
    if options.check and options.output == "text":
        return _print(f"{options.check}: fine")
    return _print((shown.as_json(loaded) if options.output == "json" else shown.text(loaded)).rstrip("\n"))


def _demo(options: argparse.Namespace) -> int:
    from nodeagent.demo import story

    return story.run(keep=options.keep)


def _print(text: str) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without our signs gets escapes
    print(text, flush=True)  # a reader that has gone is noticed here, not when Python exits
    return FINE
