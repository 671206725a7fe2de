# SPDX-License-Identifier: Apache-2.0
"""What words on the kernel's command line mean, and how each boot loader changes them."""

from __future__ import annotations

import pytest

from nodeagent.model.surroundings import Loader
from nodeagent.policy.ready import commandline
from tests.facts import names
from tests.policy.ready.asking import short


@pytest.mark.parametrize(
    ("words", "off"),
    [
        ("intel_iommu=on", ""),
        ("intel_iommu=off", "intel_iommu=off"),
        ("intel_iommu=on intel_iommu=off", "intel_iommu=off"),
        ("intel_iommu=off intel_iommu=on,sm_on", ""),
        ("iommu=pt", ""),
        ("iommu=off intel_iommu=on", "iommu=off"),
        ("amd_iommu=fullflush,off", "amd_iommu=fullflush,off"),
        ("xintel_iommu=off", ""),
    ],
)
def test_the_last_word_of_a_name_switches_the_iommu_off(words: str, off: str) -> None:
    assert commandline.iommu_off(words.split()) == off


@pytest.mark.parametrize("word", ["nointremap", "intremap=off"])
def test_two_words_switch_remapping_off(word: str) -> None:
    assert commandline.remapping_off(["quiet", word]) == word
    assert commandline.remapping_off(["intremap=on"]) == ""


@pytest.mark.parametrize("loader", [None, *Loader])
def test_every_loader_adds_and_takes_a_word_and_asks_for_a_drained_node(loader: Loader | None) -> None:
    for told in (
        commandline.add("intel_iommu=on", loader),
        commandline.take("intel_iommu=off", loader),
    ):
        assert "intel_iommu=o" in told
        names(told, "drain", "reboot")
        assert short(told)
