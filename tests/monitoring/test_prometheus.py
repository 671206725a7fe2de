# SPDX-License-Identifier: Apache-2.0
"""What a real daemon says, in the real Prometheus: names, alerts, and each query of the dashboard."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from nodeagent.http.server import listen
from tests import ROOT, fetching
from tests.monitoring import stages

MONITORING = ROOT / "packaging/monitoring"
VARIABLES = {"$instance": ".*", "$resource": ".*", "$__rate_interval": "1m"}
EMPTY = ('health="unhealthy"', "nodeagent_event_losses_total")  # there are some only in trouble
PATIENCE = 60.0
SCRAPE = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs: [{{job_name: nodeagent, static_configs: [{{targets: ["{target}"]}}]}}]
"""


def run(command: list[str], directory: Path, text: str = "") -> str:
    """What a program says. It must be content."""
    done = subprocess.run(
        command, cwd=directory, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_the_rules_are_valid_and_each_alert_comes_when_it_must(promtool: str) -> None:
    assert "SUCCESS" in run([promtool, "check", "rules", "--lint-fatal", "alerts.yaml"], MONITORING)
    assert "SUCCESS" in run([promtool, "test", "rules", "alerts-test.yaml"], MONITORING)


async def test_what_a_daemon_says_is_as_prometheus_wants_it(promtool: str, tmp_path: Path) -> None:
    async with stages.gpus() as one, stages.vgpus() as (other, _):
        for node in (one, other):
            text = await anyio.to_thread.run_sync(fetching.body, f"{await node.page_address()}metrics")
            assert await anyio.to_thread.run_sync(run, [promtool, "check", "metrics"], tmp_path, text) == ""


async def test_prometheus_answers_every_query_of_the_dashboard(prometheus: str, tmp_path: Path) -> None:
    async with stages.vgpus() as (node, _):
        target = (await node.page_address()).removeprefix("http://").rstrip("/")
        async with server(prometheus, tmp_path / "prometheus", target) as ask:
            await until_scraped(ask)
            silent = [query for query in queries() if not any(part in query for part in EMPTY)]
            with anyio.move_on_after(PATIENCE):  # a change that fails is tried again, ever more slowly
                while silent := [  # noqa: ASYNC110 - Prometheus raises no event
                    query for query in silent if not await answered(ask, query)
                ]:
                    await anyio.sleep(1)
            assert silent == []
            groups = (await anyio.to_thread.run_sync(ask, "rules"))["groups"]
            assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


async def answered(ask: Any, query: str) -> bool:
    """True if there is a result."""
    answer = await anyio.to_thread.run_sync(ask, f"query?query={urllib.parse.quote(query)}")
    return bool(answer["result"])


def queries() -> Iterator[str]:
    """All queries of the dashboard, with its variables filled in."""
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = str(target["expr"])
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield query


def configured(directory: Path, target: str) -> Path:
    """A configuration file in a directory that is made."""
    directory.mkdir()
    config = directory / "prometheus.yaml"
    config.write_text(SCRAPE.format(rules=MONITORING / "alerts.yaml", target=target))
    return config


@asynccontextmanager
async def server(program: str, directory: Path, target: str) -> AsyncIterator[Any]:
    """Prometheus that scrapes the target each second; what asks its API (blocks)."""
    config = configured(directory, target)
    with listen("127.0.0.1:0") as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={directory}/data"]

    def ask(path: str) -> Any:
        return json.loads(fetching.body(f"http://{address}/api/v1/{path}"))["data"]

    async with await anyio.open_process(
        [*command, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield ask
        finally:
            process.kill()


async def until_scraped(ask: Any) -> None:
    """Wait until two minutes' worth of queries have something to go by: three scrapes."""
    query = urllib.parse.quote("count_over_time(nodeagent_build_info[1m]) > 3")
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                if (await anyio.to_thread.run_sync(ask, f"query?query={query}"))["result"]:
                    return
            except OSError:
                pass  # it does not listen yet
            await anyio.sleep(0.2)
