# SPDX-License-Identifier: Apache-2.0
"""One boot for each kernel; its scenarios are the tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm import kernels, machine, samples
from tests.vm.machine import Boot

_OWN = Path(__file__).with_name("pytest.ini")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only ``make vm`` collects this tier: it needs QEMU, Debian's kernels and minutes."""
    return None if config.inipath == _OWN else True


@pytest.fixture(scope="session", params=kernels.KINDS)
def boot(request: pytest.FixtureRequest) -> Iterator[Boot]:
    """What a boot of that kernel has left."""
    kernel = kernels.kernel(request.param)
    with tempfile.TemporaryDirectory(prefix="nodeagent-vm-") as folder:
        done = machine.boot(kernel, samples.build(request.param), Path(folder) / "job")
        print(f"\nLinux {kernel.version}: {done.seconds:.0f} s")
        yield done
