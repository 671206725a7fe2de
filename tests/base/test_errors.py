# SPDX-License-Identifier: Apache-2.0
"""Errors are two lines for a person, and sorted by whose fault they are."""

from __future__ import annotations

import pytest

from nodeagent.base import errors


def test_a_person_sees_what_happened_and_what_to_do() -> None:
    error = errors.ConfigError("no such key: tming", "did you mean timing?")
    assert error.lines() == "no such key: tming\ndid you mean timing?"
    assert str(error) == "no such key: tming"


def test_of_what_is_very_long_a_person_sees_how_it_begins_and_ends() -> None:
    what, hint = f'config.yaml:3: "{"x" * 5000}" is no class', f"write it as {'y' * 5000} is written"
    error = errors.ConfigError(what, hint)
    assert len(error.what) < errors.LONGEST + 50
    assert len(error.hint) < errors.LONGEST + 50
    assert error.what.startswith('config.yaml:3: "xxx')
    assert error.what.endswith('xxx" is no class')
    assert f"({len(what) - errors.LONGEST} more characters)" in error.what


def test_what_cannot_be_printed_breaks_no_line() -> None:
    error = errors.ConfigError('config.yaml:6: "0\n000:86\x1b[0m" matches nothing', "write é, not \t")
    assert error.lines() == 'config.yaml:6: "0\\n000:86\\x1b[0m" matches nothing\nwrite é, not \\t'


def test_without_a_hint_there_is_one_line() -> None:
    assert errors.AllocationRefused("gone").lines() == "gone"


def test_what_the_kernel_refused_has_number_and_path() -> None:
    error = errors.KernelRefused("no", errno=13, path="/sys/x")
    assert (error.what, error.errno, error.path) == ("no", 13, "/sys/x")


@pytest.mark.parametrize(
    "kind",
    [
        errors.ConfigError,
        errors.KernelRefused,
        errors.KubeletUnavailable,
        errors.AllocationRefused,
        errors.AlreadyRunning,
        errors.InternalError,
    ],
)
def test_every_error_can_be_caught_as_one(kind: type[errors.NodeagentError]) -> None:
    with pytest.raises(errors.NodeagentError, match="what"):
        raise kind("what", "hint")
