# SPDX-License-Identifier: Apache-2.0
"""What the narrow import of kubernetes_asyncio loads: looked at in interpreters of its own."""

from __future__ import annotations

import json
import subprocess
import sys

LOADED = """
import json, sys
from nodeagent.cluster import door
kubernetes = door.kubernetes()
assert door.kubernetes() is kubernetes
kubernetes.client, kubernetes.config.load_incluster_config, kubernetes.config.load_kube_config
print(json.dumps([*sys.modules]))
"""
PAST_IT = """
import kubernetes_asyncio.client.exceptions
from nodeagent.cluster import door
door.kubernetes()
"""
AT_START = """
import sys
import nodeagent.app
print([name for name in ("aiohttp", "kubernetes_asyncio", "nodeagent.cluster") if name in sys.modules])
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_the_narrow_import_loads_few_modules_and_no_models() -> None:
    done = run(LOADED)
    loaded = json.loads(done.stdout)
    assert not {"urllib3", "dateutil", "multiprocessing"} & {*loaded}
    names = [name for name in loaded if name.startswith("kubernetes_asyncio")]
    assert "kubernetes_asyncio.client.api_client" in names
    assert len(names) <= 20
    assert [name for name in names if ".models.v1_" in name or ".client.api." in name] == []


def test_an_import_past_the_door_is_an_error() -> None:
    assert "imported past its door" in run(PAST_IT).stderr


def test_the_daemon_starts_without_any_of_it() -> None:
    assert run(AT_START).stdout == "[]\n"
