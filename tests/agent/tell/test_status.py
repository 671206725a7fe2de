# SPDX-License-Identifier: Apache-2.0
"""The text on directories that cannot be watched."""

from __future__ import annotations

from nodeagent.agent.tell.status import late_events
from tests.facts import names


def test_directories_that_cannot_be_watched_are_named_up_to_five() -> None:
    (problem,) = late_events(tuple("abcdef"), has_instance=True)
    names(problem.what, "a, b, c, d, e and others", "fs.inotify.max_user_watches")
    (problem,) = late_events(("a",), has_instance=False)
    names(problem.what, "fs.inotify.max_user_instances")
    assert list(late_events((), has_instance=False)) == []
