# SPDX-License-Identifier: Apache-2.0
"""The status page in Chromium, of a real daemon: what is shown, that it follows, and that nothing is fetched.

``NODEAGENT_PICTURES=DIR`` keeps a picture of each page, to be looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest

from nodeagent.demo.story import GPU
from tests import ROOT
from tests.facts import names
from tests.monitoring import stages
from tests.monitoring.browser import Tab, browser

T = TypeVar("T")
SHOWN = "document.getElementById('main') && !document.getElementById('main').hidden"
BLOCKS = "[...document.querySelectorAll('.group h3')].map((each) => each.textContent)"
STATES = (
    "Object.fromEntries([...document.querySelectorAll('#states label')]"
    ".map((each) => [each.dataset.state, +each.lastChild.textContent]))"
)
RESOURCES = "document.getElementById('resources').innerText"
UNNAMED = (
    "[...document.querySelectorAll('button,input,meter,a')]"
    ".filter((each) => !(each.innerText || each.ariaLabel || each.closest('label'))).length"
)
CONTRASTS = Path(__file__).with_name("contrast.js").read_text()


@pytest.fixture
def tab(chromium: str, tmp_path: Path) -> Iterator[Tab]:
    with browser(chromium, tmp_path / "browser") as tab:
        yield tab


async def of(call: Callable[..., T], *arguments: Any) -> T:
    """What the browser gives: the loop is the kubelet's meanwhile."""
    return await anyio.to_thread.run_sync(call, *arguments)


async def opened(tab: Tab, url: str, theme: str = "light", width: int = 1280) -> None:
    await of(tab.theme, theme)
    await of(tab.open, url, width)
    await of(tab.until, SHOWN)


async def picture(tab: Tab, name: str) -> None:
    if directory := os.environ.get("NODEAGENT_PICTURES"):
        await of(tab.picture, Path(directory) / f"{name}.png")


def find(text: str) -> str:
    """What types into the search field."""
    return (
        f"(() => {{ const field = document.getElementById('search'); field.value = {text!r};"
        " field.dispatchEvent(new Event('input')); return document.getElementById('groups').innerText; })()"
    )


def words(role: str) -> str:
    """How the page words the role of a function in its group."""
    source = (ROOT / "nodeagent/render/page_parts/page.js").read_text()
    (found,) = re.findall(rf'^  {role}: "(.*)",$', source, re.MULTILINE)
    return str(found)


def show(state: str) -> str:
    """What chooses a state."""
    return f"document.querySelector('#states input[value={state}]').click()"


async def test_trouble_comes_first_with_its_reason_and_what_to_do(tab: Tab) -> None:
    async with stages.gpus() as node:
        url = await node.page_address()
        await opened(tab, url)
        trouble = await of(tab.value, "document.getElementById('trouble').innerText")
        blocks = await of(tab.value, BLOCKS)
        text = await of(tab.text)
        states = await of(tab.value, STATES)
        await picture(tab, "gpus-light")
        assert tab.complaints == []
        assert set(tab.requests) == {url, f"{url}events"}
    names(trouble, f"{GPU}: {stages.REBOUND} is Unhealthy: ", "nvidia", "a display controller")
    assert f"nodeagent explain {stages.REBOUND}" in trouble
    assert "1 device waits for a pod to end" in trouble
    assert text.index("Problems (3)") < text.index("Resources") < text.index("Devices by IOMMU group")
    assert set(blocks[:2]) == {"IOMMU group 12", "IOMMU group 14"}
    names(text, "games/virt-launcher-red", "0000:d8:01.0 (e1000e)")
    assert states == {"all": 18, "bad": 3, "wait": 1, "held": 1, "good": 4, "none": 9}


async def test_what_changes_on_the_node_is_seen_without_a_reload(tab: Tab) -> None:
    async with stages.gpus() as node:
        await opened(tab, await node.page_address())
        await of(tab.value, "window.mark = 'not loaded anew'")
        node.host.bind(stages.REBOUND, "vfio-pci")
        await of(tab.until, "document.getElementById('trouble-title').textContent === 'Problems (1)'")
        await node.kubelet.stop()
        await of(tab.until, f"{RESOURCES}.includes('not registered')")
        await node.kubelet.start()
        await of(tab.until, f"!{RESOURCES}.includes('not registered')")
        assert await of(tab.value, "window.mark") == "not loaded anew"
        assert await node.end_daemon() == 0
        await of(tab.until, "document.getElementById('live').innerText.includes('connection lost')")
        assert await of(tab.value, "document.body.classList.contains('stale')")
        await picture(tab, "gpus-lost")


async def test_search_and_states_find_a_device_among_many(tab: Tab) -> None:
    async with stages.gpus() as node:
        await opened(tab, await node.page_address())
        assert stages.REBOUND in await of(tab.value, find("DRIVER nvidia vfio"))
        held = await of(tab.value, find("virt-launcher-red"))
        assert ("in use by games" in held, "0000:86" in held) == (True, False)
        await of(tab.value, find(""))
        await of(tab.value, show("wait"))
        assert await of(tab.value, BLOCKS) == ["IOMMU group 10"]
        await of(tab.value, show("none"))
        assert "audio device that goes with its card" in await of(tab.text)
        await of(tab.value, show("all"))
        await of(tab.value, "document.activeElement.blur()")
        await of(tab.press, "/")
        assert await of(tab.value, "document.activeElement.id") == "search"


async def test_vgpus_their_plan_and_what_the_kernel_refuses_are_shown(tab: Tab) -> None:
    async with stages.vgpus() as (node, _):
        await opened(tab, await node.page_address(), "dark")
        plan = await of(tab.value, "document.getElementById('plan').innerText")
        text = await of(tab.text)
        await picture(tab, "vgpus-dark")
        assert tab.complaints == []
    names(plan, "nvidia-222", "desks/virt-launcher-blue", "Input/output error")
    assert "tries, next in" in plan
    assert "Card 0000:86:00.0" in text
    assert "desks/virt-launcher-blue" in text
    assert words("splits") in text
    assert words("blocks") not in text
    assert "not viable" not in text


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_it_is_legible_in_both_themes_and_fits_a_phone(tab: Tab, theme: str) -> None:
    async with stages.gpus() as node:
        await opened(tab, await node.page_address(), theme, 390)
        await picture(tab, f"phone-{theme}")
        assert await of(tab.value, "document.documentElement.scrollWidth") <= 390
        assert await of(tab.value, CONTRASTS) == []  # WCAG 2.2, 1.4.3: at least 4.5
        assert await of(tab.value, UNNAMED) == 0
        ground = "getComputedStyle(document.body).backgroundColor"
        before = await of(tab.value, ground)
        await of(tab.value, "document.getElementById('theme').click()")
        assert await of(tab.value, ground) != before


async def test_names_that_look_like_markup_stay_text(tab: Tab) -> None:
    async with stages.gpus() as node:
        node.configure("'<img src=x onerror=alert(1)>': 1\n")
        await opened(tab, await node.page_address())
        await of(tab.until, "document.getElementById('trouble').innerText.includes('<img src=x')")
        assert await of(tab.value, "document.images.length") == 0
        assert tab.complaints == []


async def test_a_thousand_devices_are_shown_and_searched_quickly(tab: Tab) -> None:
    async with stages.many(1000) as node:
        await opened(tab, await node.page_address())
        assert (await of(tab.value, STATES))["good"] == 1000
        timed = (
            f"(() => {{ const at = performance.now(); {find('0000:1')}; return performance.now() - at; }})()"
        )
        took = await of(tab.value, timed)
        print(f"a search among 1,000 devices takes {took:.0f} ms")
        assert took < 1000
