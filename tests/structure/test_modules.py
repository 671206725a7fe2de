# SPDX-License-Identifier: Apache-2.0
"""What the daemon may not load in its sandbox is loaded by what it is packaged with."""

from __future__ import annotations

from tests.structure.sources import ROOT

_PACKAGING = ROOT / "packaging"


def test_vfio_pci_is_loaded_at_boot_and_by_the_unit_which_may_load_nothing_later() -> None:
    listed = (_PACKAGING / "modules-load.conf").read_text().splitlines()
    assert [line for line in listed if not line.startswith("#")] == ["vfio-pci"]
    assert '"/usr/lib/modules-load.d/nodeagent.conf"' in (_PACKAGING / "builder/recipes.py").read_text()
    unit = (_PACKAGING / "nodeagent.service").read_text().splitlines()
    assert "ExecStartPre=+-/sbin/modprobe -qa vfio-pci" in unit
    assert "ProtectKernelModules=yes" in unit
