# SPDX-License-Identifier: Apache-2.0
"""Names from pci.ids: right vendor, whole words, broken files, and which file is asked."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from nodeagent.base.errors import KernelRefused
from nodeagent.kernel import pci_ids
from nodeagent.kernel.pci_ids import HOST_FILES
from nodeagent.kernel.root import Root
from tests import exhausted

TEXT = """\
# a comment
8086  Intel Corporation
\t1f08  Not the one
\t1f081  Longer
10de  NVIDIA Corporation
# a comment inside
\t1eb  Shorter
\t1eb80  Longer
\t1eb8  TU104GL [Tesla T4]
\t\t10de 1f08  A subsystem
\t05be

\tbeef\tWith a tab
1eb8  A vendor of that number
\t10de  Its device
C 03  Display controller
\t00  VGA compatible controller
"""


def given(root: Path, text: str | bytes, path: str = HOST_FILES[1]) -> Root:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Root(root)


def names_in(root: Root, wanted: list[tuple[str, str]]) -> dict[str, str]:
    """What the file says that was given."""
    return pci_ids.names(root, wanted, HOST_FILES[1])


def test_a_device_is_found_below_its_vendor_only(tmp_path: Path) -> None:
    found = names_in(
        given(tmp_path, TEXT),
        [
            ("10de", "1eb8"),
            ("10de", "1f08"),
            ("10de", "10de"),
            ("8086", "1f08"),
            ("1eb8", "10de"),
            ("10de", "beef"),
        ],
    )
    assert found["10de"] == "NVIDIA Corporation"
    assert found["10de:1eb8"] == "TU104GL [Tesla T4]"
    assert found["10de:1f08"] not in ("Not the one", "A subsystem")
    assert found.get("10de:10de") is None
    assert found["8086:1f08"] == "Not the one"
    assert found["1eb8"] == "A vendor of that number"
    assert found["1eb8:10de"] == "Its device"
    assert found["10de:beef"] == "With a tab"


UNBUNDLED = "fff0"  # of no device that the bundled copy knows


def test_hwdata_wins_over_misc_and_the_bundled_copy_over_both(tmp_path: Path) -> None:
    wanted = [("10de", "1eb8"), ("10de", UNBUNDLED)]
    bundled = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}
    assert pci_ids.names(Root(tmp_path), wanted) == bundled
    misc = given(tmp_path, f"10de  N\n\t1eb8  Misc\n\t{UNBUNDLED}  Misc\n")
    assert pci_ids.names(misc, wanted) == {**bundled, "10de:fff0": "Misc"}
    hwdata = given(tmp_path, f"10de  N\n\t1eb8  Hwdata\n\t{UNBUNDLED}  Hwdata\n", HOST_FILES[0])
    assert pci_ids.names(hwdata, wanted) == {**bundled, "10de:fff0": "Hwdata"}
    without = given(tmp_path, f"10de  N\n\t{UNBUNDLED}   \n", HOST_FILES[0])
    assert pci_ids.names(without, wanted) == {**bundled, "10de:fff0": "Misc"}


def test_a_chosen_file_wins_over_all_for_what_it_knows(tmp_path: Path) -> None:
    root = given(tmp_path, "10de  Mine\n", "/etc/mine")
    wanted = [("10de", "1eb8")]
    assert pci_ids.names(root, wanted, "/etc/mine") == {"10de": "Mine", "10de:1eb8": "TU104GL [Tesla T4]"}
    assert pci_ids.names(root, wanted, "/etc/absent")["10de"] == "NVIDIA Corporation"


def test_where_the_bundled_copy_knows_all_no_file_of_the_host_is_opened(tmp_path: Path) -> None:
    for path in HOST_FILES:
        at = tmp_path / path.lstrip("/")
        at.parent.mkdir(parents=True)
        os.mkfifo(at)  # opening it would not end
    found: list[dict[str, str]] = []
    thread = threading.Thread(
        target=lambda: found.append(pci_ids.names(Root(tmp_path), [("10de", "1eb8")])), daemon=True
    )
    thread.start()
    thread.join(timeout=10)
    assert [texts["10de:1eb8"] for texts in found] == ["TU104GL [Tesla T4]"]


def test_the_bundled_copy_tells_its_day() -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", pci_ids.bundled_date())


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"\x00" * 100, b"\xff\xfe garbage", b"10d", b"\t1eb8  An orphan\n", b"10dex  No\n"],
)
def test_a_broken_file_of_the_host_is_passed_over(tmp_path: Path, text: bytes) -> None:
    found = names_in(given(tmp_path, text), [("10de", "1eb8")])
    assert found["10de:1eb8"] == "TU104GL [Tesla T4]"


@pytest.mark.parametrize(
    "text", ["10de  N\n\t1eb8  Last", "10de  N\r\n\t1eb8  Last\r\n", "10de N\n\t1eb8 Last\n"]
)
def test_odd_line_ends_and_blanks_are_understood(tmp_path: Path, text: str) -> None:
    found = names_in(given(tmp_path, text), [("10de", "1eb8")])
    assert (found["10de"], found["10de:1eb8"]) == ("N", "Last")


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    found = names_in(given(tmp_path, b"10de  N\xe9\n"), [("10de", "1eb8")])
    assert found["10de"] == "N\ufffd"


LINES = st.sampled_from(["", "\t", "\t\t", "#", "C 03", "10de", "\t1eb8", "10de  ", "\t1eb8  "])
ENDS = st.one_of(st.text(max_size=20), st.from_regex(r"[\[\](){}A-Za-z0-9 /]{0,20}"), st.just("[NVIDIA"))


@hypothesis.given(st.lists(st.builds(str.__add__, LINES, ENDS)), st.binary(max_size=20))
def test_no_file_however_odd_is_more_than_names_or_none(lines: list[str], tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        found = names_in(given(Path(root), "\n".join(lines).encode() + tail), [("10de", "1eb8")])
    assert found.keys() <= {"10de", "10de:1eb8"}
    assert all(isinstance(name, str) for name in found.values())


def test_a_line_without_end_gives_as_much_of_it_as_a_name_can_have(tmp_path: Path) -> None:
    root = given(tmp_path, "10de  NVIDIA" + "x" * 3_000_000)
    name = pci_ids.names(root, [("10de", "1eb8")], "/usr/share/misc/pci.ids")["10de"]
    assert name.startswith("NVIDIAxx")
    assert len(name) <= 1024


def test_unknown_and_senseless_ids_have_no_name(tmp_path: Path) -> None:
    found = names_in(given(tmp_path, TEXT), [("10de", ""), ("", ""), ("10de", "zzzz"), ("C 03", "00")])
    assert found.get("10de:") is None
    assert found.get("") is None
    assert found.get("C 03") is None
    assert found["10de"] == "NVIDIA Corporation"


def test_without_wishes_there_are_no_names(tmp_path: Path) -> None:
    assert pci_ids.names(Root(tmp_path), []) == {}


def test_a_file_that_cannot_be_opened_now_does_not_leave_the_names_to_the_next(tmp_path: Path) -> None:
    root = given(tmp_path, TEXT)
    with exhausted.no_descriptors(), pytest.raises(KernelRefused):
        pci_ids.names(root, [("10de", "1eb8")])
