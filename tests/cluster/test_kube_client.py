# SPDX-License-Identifier: Apache-2.0
"""The modules that the lean import of kubernetes_asyncio loads, each time in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys

LOADED = """
import json, sys
from nodeagent.cluster import kube_client
kubernetes = kube_client.kubernetes()
assert kube_client.kubernetes() is kubernetes
kubernetes.client, kubernetes.config.load_incluster_config, kubernetes.config.load_kube_config
print(json.dumps([*sys.modules]))
"""
TRUSTED = """
import asyncio, ssl
read = []
usual = ssl.SSLContext.set_default_verify_paths
def set_default_verify_paths(self): read.append(self); usual(self)
ssl.SSLContext.set_default_verify_paths = set_default_verify_paths
from nodeagent.cluster import kube_client
kubernetes = kube_client.kubernetes()
print(len(read))
async def make():
    await kubernetes.client(kubernetes.configuration()).close()
asyncio.run(make())
print(len(read), read[0].verify_mode.name, read[0].check_hostname)
"""
PAST_IT = """
import kubernetes_asyncio.client.exceptions
from nodeagent.cluster import kube_client
kube_client.kubernetes()
"""
AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from nodeagent.cluster import kube_client
barrier = Barrier(4)
def load(_):
    barrier.wait()
    return kube_client.kubernetes()
with ThreadPoolExecutor(4) as threads:
    print(len({id(each) for each in threads.map(load, range(4))}))
"""
AT_START = """
import sys
import nodeagent.app
roots = ("aiohttp", "kubernetes_asyncio", "nodeagent.cluster.", "nodeagent.agent.cluster")
print([name for name in sys.modules if name.startswith(roots)])
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


def test_whom_the_host_trusts_is_read_for_a_client_that_was_told_nobody_and_not_by_the_import() -> None:
    assert run(TRUSTED).stdout.splitlines() == ["0", "1 CERT_REQUIRED True"]


def test_an_import_of_the_whole_library_is_an_error() -> None:
    assert "was imported whole" in run(PAST_IT).stderr


def test_a_daemon_that_starts_loads_the_credentials_alone() -> None:
    assert run(AT_START).stdout == "['nodeagent.cluster.credentials']\n"


def test_several_threads_may_need_the_library_at_once() -> None:
    done = run(AT_ONCE)
    assert (done.stdout.strip(), done.stderr) == ("1", "")
