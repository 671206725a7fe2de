# SPDX-License-Identifier: Apache-2.0
"""What is advised about an errno, whatever was tried: what helps, and sudo to those whom it helps."""

from __future__ import annotations

import errno
import itertools
import os

import pytest

from nodeagent.base import advice
from nodeagent.base.advice import Doing

HELPS = {  # errno → a word of what helps
    errno.ENOENT: ("path", "directory", "install"),
    errno.ENOTDIR: ("director",),
    errno.EISDIR: ("directory",),
    errno.EROFS: ("writable",),
    errno.ENOSPC: ("room",),
    errno.EDQUOT: ("room",),
    errno.EMFILE: ("its limit",),
    errno.ENFILE: ("all processes",),
    errno.ENOMEM: ("memory",),
    errno.ENODEV: ("driver",),
    errno.EBUSY: ("fuser",),
    errno.EIO: ("fails",),
    errno.ELOOP: ("circle",),
    errno.ENAMETOOLONG: ("shorten",),
    errno.EADDRINUSE: ("another program",),
}


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/x")


ELSEWHERE = {(errno.EISDIR, each) for each in (Doing.LIST, Doing.LISTEN, Doing.RUN)}  # does not come
CASES = [each for each in itertools.product(HELPS, Doing) if each not in ELSEWHERE]


@pytest.mark.parametrize(("number", "doing"), CASES, ids=str)
def test_each_errno_has_an_advice_that_no_other_permission_would_help(number: int, doing: Doing) -> None:
    told = advice.on(error(number), doing)
    assert any(each in told for each in HELPS[number])
    assert "sudo" not in told


@pytest.mark.parametrize("doing", [each for each in Doing if each is not Doing.RUN])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_missing_permission_is_another_matter_to_root(number: int, doing: Doing) -> None:
    helps = "AppArmor, SELinux" if os.geteuid() == 0 else "sudo"  # as both: tests/cli/test_hints.py
    assert helps in advice.on(error(number), doing)


def test_what_else_may_be_done_comes_behind_it_or_alone() -> None:
    alone, both = (advice.on(error(errno.EROFS), Doing.WRITE, *more) for more in ((), ("or do without",)))
    assert alone
    assert both == f"{alone}; or do without"
    assert advice.on(error(errno.EDOM), Doing.WRITE, "or do without") == "or do without"
    assert advice.on(error(errno.EDOM), Doing.WRITE) == ""


def test_what_happened_is_told_without_numbers_and_quotes() -> None:
    assert advice.words(error(errno.ENOENT)) == "No such file or directory"
    assert advice.words(OSError("it burns")) == "it burns"
    assert advice.words(ValueError("it burns")) == "it burns"
