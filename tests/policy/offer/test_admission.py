# SPDX-License-Identifier: Apache-2.0
"""Which pod asks: what was measured on a real kubelet, and the limits of the rule."""

from __future__ import annotations

import pytest

from nodeagent.model.allocation import Pods
from nodeagent.model.ids import ResourceName
from nodeagent.policy.offer.allocating import is_other_pod

GPU, USB, OTHER = ResourceName("a.b/gpu"), ResourceName("a.b/usb"), ResourceName("x.y/other")
NOTHING = frozenset[tuple[ResourceName, str]]()
HAS_GPU = frozenset({(GPU, "g")})
HAS_OTHER = frozenset({(OTHER, "0")})
GIVEN = HAS_GPU

CASES: list[tuple[str, Pods, Pods, bool]] = [
    ("the next resource", {"p": NOTHING}, {"p": HAS_GPU}, False),
    ("another plugin's in between", {"p": NOTHING}, {"p": HAS_GPU | HAS_OTHER}, False),
    ("others are as they were", {"p": NOTHING, "q": HAS_OTHER}, {"p": HAS_GPU, "q": HAS_OTHER}, False),
    ("another has ended", {"p": NOTHING, "q": HAS_OTHER}, {"p": HAS_GPU}, False),
    ("a new pod", {"p": NOTHING}, {"p": HAS_GPU, "q": NOTHING}, True),
    ("a new pod after a refusal", {"p": NOTHING}, {"q": NOTHING}, True),
    ("the same name again", {"p": NOTHING, "q": HAS_OTHER}, {"p": HAS_GPU, "q": NOTHING}, True),
    ("its own name again", {"p": HAS_OTHER}, {"p": HAS_GPU}, True),
    ("another has got something", {"p": NOTHING, "q": NOTHING}, {"p": HAS_GPU, "q": HAS_OTHER}, True),
    ("a plain init container has it", {"p": NOTHING}, {"p": NOTHING}, False),
    ("that, and another plugin's", {"p": NOTHING}, {"p": HAS_OTHER}, False),
    (
        "that, and two have got something",
        {"p": NOTHING, "q": NOTHING},
        {"p": HAS_OTHER, "q": HAS_OTHER},
        True,
    ),
    ("two show it", {"p": NOTHING, "q": HAS_GPU}, {"p": HAS_GPU, "q": HAS_GPU}, True),
]


@pytest.mark.parametrize(
    ("before", "now", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_names_and_listed_devices_tell_whether_another_pod_asks(
    before: Pods, now: Pods, expected: bool
) -> None:
    assert is_other_pod(before, now, GIVEN) is expected
