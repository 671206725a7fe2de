# SPDX-License-Identifier: Apache-2.0
"""Man page and shell completion, made from the live parser and the table of settings at each build.

So they cannot differ from the program. The libraries know the formats; here stands only what they are to say.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from builder import source
from nodeagent import config
from nodeagent.cli import output
from nodeagent.cli import parser as commands
from nodeagent.config.codec import Word
from nodeagent.render import logs

COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/nodeagent",
    "zsh": "usr/share/zsh/vendor-completions/_nodeagent",
    "fish": "usr/share/fish/vendor_completions.d/nodeagent.fish",
}
DOCUMENTATION = "usr/share/doc/nodeagent"
DOCUMENTS = {"changelog.gz": "CHANGES.md"} | {
    f"{page}.md.gz": f"{page}.md"
    for page in (
        *("architecture", "commands", "concepts", "configuration", "dra", "dra-reference", "events"),
        *("getting-started", "host-preparation", "kubernetes", "kubevirt", "logs", "metrics", "migrating"),
        *("packaging", "scale", "testing", "troubleshooting", "usb", "vgpu"),
    )
}
CATALOG = "usr/lib/systemd/catalog/nodeagent.catalog"
MAN_PAGE = "usr/share/man/man8/nodeagent.8.gz"
_PATHS = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
_FILES = (
    ("/etc/nodeagent/config.yaml, /etc/nodeagent/conf.d/*.yaml", "settings; read again when they change"),
    ("/etc/default/nodeagent", "environment of the service"),
    ("/run/nodeagent/status.sock", "answers nodeagent status, takes nodeagent bind and nodeagent release"),
)
_SEE = "systemctl(1), journalctl(1); the settings with examples: /usr/share/doc/nodeagent/configuration.md.gz"


def write(root: Path) -> None:
    """Write all of them below ``root``, to the places where the distribution looks for them."""
    for shell, place in COMPLETIONS.items():
        _write(root / place, completion(shell).encode())
    _write(root / CATALOG, logs.catalog().encode())
    _write(root / MAN_PAGE, compressed(man_page()))
    for name, page in DOCUMENTS.items():
        _write(root / DOCUMENTATION / name, compressed((source.ROOT / "docs" / page).read_text()))
    for schema in (source.ROOT / "docs/schemas").glob("*.json"):
        _write(root / DOCUMENTATION / "schemas" / schema.name, schema.read_bytes())


def compressed(text: str) -> bytes:
    """A gzip file that bears neither a name nor a time."""
    return gzip.compress(text.encode(), mtime=0)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def completion(shell: str) -> str:
    """The completion of bash, zsh or fish: words, files and directories where they are meant."""
    parser = commands.parser()
    for action in itertools.chain(*(each._actions for each in _parsers(parser))):
        if action.metavar in _PATHS:
            action.complete = _PATHS[str(action.metavar)]  # type: ignore[attr-defined]  # shtab's own attribute
        elif (setting := config.BY_KEY.get(action.dest)) and isinstance(setting.shape, Word):
            words = setting.shape.words.split(" | ")
            action.choices = words if len(words) > 1 else None
    return shtab.complete(parser, shell)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and the parsers of its commands; argparse has no public API for them and their actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def man_page() -> str:
    """nodeagent(8). The settings are told once, not as flags of each command."""
    parser = commands.parser()
    for command in list(_parsers(parser))[1:]:
        command.description = None  # it says the same as the line above it
        command._action_groups = [group for group in command._action_groups if group.title != "settings"]
        command._actions = [action for action in command._actions if action.dest not in config.BY_KEY]
    parser.epilog = None
    page = Manpage(parser, format="single-commands-section")
    page.description = "manages the devices of a node that are assigned to VMs"
    page.date, page.section, page.manual = "", 8, "System administration"
    page.source = f"nodeagent {source.version()}"
    return "\n".join([str(page).rstrip(), *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    yield from _exit_codes()
    yield ".SH EXAMPLES"
    for command in commands.COMMANDS:
        yield from (line for each in command.examples for line in (".PP", _escaped(f"nodeagent {each}")))
    yield ".SH SETTINGS"
    yield "Each is a key of the files below. Most are a variable, too, and a flag of every command but demo."
    yield "Flags override variables, these override conf.d, and that overrides config.yaml. See SEE ALSO."
    for setting in config.SETTINGS:
        if not setting.obsolete:
            yield from _setting(setting)
    yield ".SH FILES"
    for path, meaning in _FILES:
        yield from (".TP", f".I {_escaped(path)}", _escaped(meaning))
    yield ".SH SEE ALSO"
    yield _escaped(_SEE)


def _exit_codes() -> Iterator[str]:
    """The exit codes; only some commands use 3, each with its own meaning."""
    for code, meaning in commands.COMMANDS[0].codes.items():
        yield from (".TP", str(code), _escaped(meaning))
    wrong = "; ".join(f"{command.name}: {command.wrong}" for command in commands.COMMANDS if command.wrong)
    yield from (".TP", str(output.WRONG), _escaped(f"a problem was found ({wrong})"))


def _setting(setting: config.Setting) -> Iterator[str]:
    ways = ", ".join(way for way in (setting.flag, setting.env) if way)
    yield from (".TP", f".B {_escaped(setting.key)}")
    yield _escaped(
        f"{setting.help} ({setting.shape.words}{'; ' + ways if ways else ''})" + setting.note("; ", "")
    )


def _escaped(text: str) -> str:
    """Text of a line of roff."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe
