# SPDX-License-Identifier: Apache-2.0
"""Foreign words in errors, and the pauses after them."""

from __future__ import annotations

import errno

import pytest

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import api
from nodeagent.cluster.api import Expired, TooLarge


def test_foreign_text_is_cut_short_and_made_harmless() -> None:
    error = api.error_of_status("GET /x", 500, b"\x1b[31m" + b"word \n" * 1000)
    assert len(error.what) < 250
    assert error.what.isprintable()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("", 0.0), ("99999", 99999.0), ("Fri, 31 Dec 1999", 0.0), ("-1", 0.0), ("²", 0.0)],
)
def test_retry_after_is_read_in_seconds(text: str, seconds: float) -> None:
    assert api.error_of_status("GET /x", 503, b"", text).after == seconds


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EPERM])
def test_who_is_forbidden_to_use_the_network_is_told_who_may_have_done_so(number: int) -> None:
    assert "drop-in" in api.unreachable("GET /x", OSError(number, "no")).hint
    assert api.unreachable("GET /x", OSError(errno.ECONNREFUSED, "no")).hint == ""


def test_a_version_that_is_too_old_is_an_error_of_its_own() -> None:
    assert isinstance(api.error_of_status("GET /x", 410, b"{}"), Expired)


@pytest.mark.parametrize(
    ("error", "first", "last"),
    [
        (api.error_of_status("GET /x", 500, b""), 0.5, 30.0),
        (api.error_of_status("GET /x", 401, b""), 0.5, 30.0),
        (api.error_of_status("GET /x", 404, b""), 5.0, 60.0),
        (api.error_of_status("GET /x", 403, b""), 30.0, 300.0),
        (TooLarge("it", 1 << 20), 30.0, 300.0),
        (api.error_of_status("GET /x", 429, b"", "20"), 20.0, 30.0),
        (api.error_of_status("GET /x", 429, b"", "99999"), 600.0, 600.0),
    ],
)
def test_pauses_grow_from_and_to(error: ClusterUnavailable, first: float, last: float) -> None:
    assert (api.retry_delay(error, 0, 0.0, Timeouts()), api.retry_delay(error, 99, 0.0, Timeouts())) == (
        first,
        last,
    )
    assert 0.0 < api.retry_delay(error, 0, 1.0, Timeouts()) != first


def test_pauses_after_retry_after_are_never_shorter_and_not_all_the_same() -> None:
    error = api.error_of_status("GET /x", 429, b"", "100")
    assert (api.retry_delay(error, 0, 0.0, Timeouts()), api.retry_delay(error, 0, 1.0, Timeouts())) == (
        100.0,
        125.0,
    )
