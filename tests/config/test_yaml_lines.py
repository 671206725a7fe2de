# SPDX-License-Identifier: Apache-2.0
"""The strict YAML reader: text stays text, and what is not accepted says file and line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.base.errors import ConfigError
from nodeagent.config import yaml_lines
from nodeagent.config.codec import Entry, Items, Scalar, Table

if TYPE_CHECKING:
    from pathlib import Path


def parse(content: bytes) -> Table:
    return yaml_lines.parse(content, "/etc/nodeagent/x.yaml")


def value(content: bytes) -> Entry:
    return parse(content).members[0].entry


@pytest.mark.parametrize(
    "text", ["0000:03:00.0", "8086:10", "0123", "1e30", "on", "2024-01-01", "true", "12"]
)
def test_an_unquoted_word_stays_the_text_that_it_is(text: str) -> None:
    entry = value(f"a: {text}".encode())
    assert isinstance(entry, Scalar)
    assert (entry.text, entry.plain, entry.null) == (text, True, False)


def test_quotes_are_known_and_a_missing_value_too() -> None:
    quoted, missing = value(b'a: ""'), value(b"a:")
    assert isinstance(quoted, Scalar)
    assert isinstance(missing, Scalar)
    assert (quoted.plain, quoted.null) == (False, False)
    assert missing.null


def test_every_key_and_value_knows_its_line() -> None:
    top = parse(b"# first\na:\n  - b\n  - c\nd: e\n")
    assert [member.place for member in top.members] == [f"/etc/nodeagent/x.yaml:{n}" for n in (2, 5)]
    items = top.members[0].entry
    assert isinstance(items, Items)
    assert [entry.place for entry in items.entries] == [f"/etc/nodeagent/x.yaml:{n}" for n in (3, 4)]


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"---\n", b"\xef\xbb\xbf# with a mark\n"])
def test_an_empty_file_gives_no_keys(content: bytes) -> None:
    assert parse(content).members == ()


def test_an_alias_stands_for_what_it_names() -> None:
    top = parse(b"a: &x [1, 2]\nb: *x\n")
    assert top.members[0].entry == top.members[1].entry


BOMB = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 9)
)

REFUSED = [
    pytest.param(b"a: 1\nb: 2\na: 3\n", 3, "written twice", id="duplicate key"),
    pytest.param(b"a:\n\t- b\n", 2, "not valid YAML", id="tab"),
    pytest.param(b"a: 1\nb: \xff\n", 2, "UTF-8", id="not UTF-8"),
    pytest.param(b"a: 1\n---\nb: 2\n", 2, "second document", id="two documents"),
    pytest.param(b"a: 1\nb: \x07\n", 2, "does not allow", id="control character"),
    pytest.param(b'a:\n  "\\U00110000"\n', 2, "not valid YAML", id="no such character"),
    pytest.param(
        b"%YAML 1." + b"1" * 5000 + b"\n---\na: b\n", 1, "not valid YAML", id="a version without end"
    ),
    pytest.param(b"# c\n\n a: 1\nb: 2\n", 3, "is indented", id="first key indented"),
    pytest.param(b"a: b: c\n", 1, "not valid YAML", id="colon"),
    pytest.param(b"a: [1, 2\n", 2, "not valid YAML", id="open bracket"),
    pytest.param(b"a: *x\n", 1, "not valid YAML", id="unknown alias"),
    pytest.param(b"a: !!python/object:os.system x\n", 1, "tag", id="tag"),
    pytest.param(b"b: 1\n<<: {a: 1}\n", 2, "merge", id="merge key"),
    pytest.param(b"[a]: 1\n", 1, "key must be a word", id="list as key"),
    pytest.param(b"- a\n", 1, "table of keys", id="list at the top"),
    pytest.param(b"just text\n", 1, "table of keys", id="text at the top"),
    pytest.param(b"a: &x [*x]\n", 1, "too deep", id="alias of itself"),
    pytest.param(BOMB, None, "too many values", id="alias bomb"),
]


@pytest.mark.parametrize(("content", "line", "words"), REFUSED)
def test_what_is_not_accepted_says_where_and_what_to_do(content: bytes, line: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(content)
    assert caught.value.what.startswith("/etc/nodeagent/x.yaml:" + (f"{line}:" if line else ""))
    assert caught.value.hint


def test_brackets_without_end_are_an_error_and_no_crash() -> None:
    with pytest.raises(ConfigError):
        parse(b"a: " + b"[" * 5000)


def test_an_absent_file_is_none(tmp_path: Path) -> None:
    assert yaml_lines.read(str(tmp_path / "absent")) is None


def test_a_directory_or_a_fifo_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "fifo", "not a regular file")):
        with pytest.raises(ConfigError, match=why):
            yaml_lines.read(str(path))


def test_a_link_that_leads_in_a_circle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="cannot be read"):
        yaml_lines.read(str(tmp_path / "loop"))


def test_a_file_over_one_mebibyte_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * (yaml_lines.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="1 MiB"):
        yaml_lines.read(str(path))
    path.write_bytes(b"#" * yaml_lines.MAX_BYTES)
    assert yaml_lines.read(str(path)) == Table((), yaml_lines.parse(b"", str(path)).place)
