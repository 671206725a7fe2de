# SPDX-License-Identifier: Apache-2.0
"""What is known of CDI files goes from the first reading to those of the component."""

from __future__ import annotations

from pathlib import Path

from nodeagent.agent import cdi_specs
from nodeagent.kernel.root import Root
from nodeagent.model.spec import CdiRule, Spec

KIND = "vendor.example/one"
FILE = f'{{"cdiVersion": "0.5.0", "kind": "{KIND}", "devices": [{{"name": "0", "containerEdits": {{}}}}]}}'


async def test_a_file_that_went_wrong_since_the_first_reading_keeps_its_devices(tmp_path: Path) -> None:
    file = tmp_path / "etc/cdi/one.json"
    file.parent.mkdir(parents=True)
    file.write_text(FILE)
    first = await cdi_specs.first(Root(tmp_path), Spec(rules=(CdiRule("a.b/one", KIND),)), 1.0)
    file.write_text("{")
    (found,) = (await cdi_specs.Reader(Root(tmp_path), first, 1.0).read(frozenset({KIND}))).values()
    assert [device.name for device in found.devices] == ["0"]
    assert found.fault
