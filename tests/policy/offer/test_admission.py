# SPDX-License-Identifier: Apache-2.0
"""Who asks: the courses that were measured on a real kubelet, and the limits of the rule."""

from __future__ import annotations

import pytest

from nodeagent.model.allocation import Pods
from nodeagent.model.ids import ResourceName
from nodeagent.policy.offer.admission import Asker, asker

GPU, USB, OTHER = ResourceName("a.b/gpu"), ResourceName("a.b/usb"), ResourceName("x.y/other")
NOTHING = frozenset[tuple[ResourceName, str]]()
HAS_GPU = frozenset({(GPU, "g")})
HAS_OTHER = frozenset({(OTHER, "0")})
GIVEN = HAS_GPU

CASES: list[tuple[str, Pods, Pods, Asker]] = [
    ("the next resource", {"p": NOTHING}, {"p": HAS_GPU}, Asker.SAME),
    ("another plugin's in between", {"p": NOTHING}, {"p": HAS_GPU | HAS_OTHER}, Asker.SAME),
    ("others are as they were", {"p": NOTHING, "q": HAS_OTHER}, {"p": HAS_GPU, "q": HAS_OTHER}, Asker.SAME),
    ("another has ended", {"p": NOTHING, "q": HAS_OTHER}, {"p": HAS_GPU}, Asker.SAME),
    ("a new pod", {"p": NOTHING}, {"p": HAS_GPU, "q": NOTHING}, Asker.OTHER),
    ("a new pod after a refusal", {"p": NOTHING}, {"q": NOTHING}, Asker.OTHER),
    ("the same name again", {"p": NOTHING, "q": HAS_OTHER}, {"p": HAS_GPU, "q": NOTHING}, Asker.OTHER),
    ("its own name again", {"p": HAS_OTHER}, {"p": HAS_GPU}, Asker.OTHER),
    ("another has got something", {"p": NOTHING, "q": NOTHING}, {"p": HAS_GPU, "q": HAS_OTHER}, Asker.OTHER),
    ("a plain init container has it", {"p": NOTHING}, {"p": NOTHING}, Asker.UNCLEAR),
    ("that, and another plugin's", {"p": NOTHING}, {"p": HAS_OTHER}, Asker.UNCLEAR),
    (
        "that, and two have got something",
        {"p": NOTHING, "q": NOTHING},
        {"p": HAS_OTHER, "q": HAS_OTHER},
        Asker.OTHER,
    ),
    ("two show it", {"p": NOTHING, "q": HAS_GPU}, {"p": HAS_GPU, "q": HAS_GPU}, Asker.OTHER),
]


@pytest.mark.parametrize(
    ("before", "now", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_names_and_what_they_show_tell_who_asks(before: Pods, now: Pods, expected: Asker) -> None:
    assert asker(before, now, GIVEN) is expected
