# SPDX-License-Identifier: Apache-2.0
"""What is advised about an errno, whatever was tried: what helps, and sudo to those whom it helps."""

from __future__ import annotations

import errno
import itertools
import os
from typing import get_args

import pytest

from nodeagent.base import hints
from nodeagent.base.hints import Operation

HELPS = {  # errno → a word of what helps
    errno.ENOENT: ("path", "directory", "install"),
    errno.ENOTDIR: ("director",),
    errno.EISDIR: ("directory",),
    errno.EROFS: ("writable",),
    errno.ENOSPC: ("room",),
    errno.EDQUOT: ("room",),
    errno.EMFILE: ("its limit",),
    errno.ENFILE: ("too many files",),
    errno.ENOMEM: ("memory",),
    errno.ENODEV: ("driver",),
    errno.EBUSY: ("fuser",),
    errno.EIO: ("errors",),
    errno.ELOOP: ("loop",),
    errno.ENAMETOOLONG: ("shorten",),
    errno.EADDRINUSE: ("another program",),
}


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/x")


OPERATIONS: tuple[Operation, ...] = get_args(Operation)
ELSEWHERE = {(errno.EISDIR, each) for each in ("list", "listen", "run")}  # does not come
CASES = [each for each in itertools.product(HELPS, OPERATIONS) if each not in ELSEWHERE]


@pytest.mark.parametrize(("number", "operation"), CASES, ids=str)
def test_each_errno_has_an_advice_that_no_other_permission_would_help(
    number: int, operation: Operation
) -> None:
    told = hints.for_errno(error(number), operation)
    assert any(each in told for each in HELPS[number])
    assert "sudo" not in told


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each != "run"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_missing_permission_is_another_matter_to_root(number: int, operation: Operation) -> None:
    helps = "AppArmor, SELinux" if os.geteuid() == 0 else "sudo"  # as both: tests/cli/test_hints.py
    assert helps in hints.for_errno(error(number), operation)


def test_what_else_may_be_done_comes_behind_it_or_alone() -> None:
    alone, both = (hints.for_errno(error(errno.EROFS), "write", *more) for more in ((), ("or do without",)))
    assert alone
    assert both == f"{alone}; or do without"
    assert hints.for_errno(error(errno.EDOM), "write", "or do without") == "or do without"
    assert hints.for_errno(error(errno.EDOM), "write") == ""


def test_what_happened_is_told_without_numbers_and_quotes() -> None:
    assert hints.strerror(error(errno.ENOENT)) == "No such file or directory"
    assert hints.strerror(OSError("it burns")) == "it burns"
    assert hints.strerror(ValueError("it burns")) == "it burns"
