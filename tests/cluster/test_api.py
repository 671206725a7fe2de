# SPDX-License-Identifier: Apache-2.0
"""Requests to the fake API server: what is sent, what comes back, and what each failure says."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster.api import MERGE_PATCH, Session
from nodeagent.cluster.credentials import HOST, Credentials
from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES
from tests import virtual
from tests.cluster.following import PATH, cr, served, session
from tests.e2e.certificates import Certificates
from tests.facts import names

ONE = f"{PATH[:-10]}/namespaces/kubevirt/kubevirts/kubevirt"


async def test_an_object_comes_as_a_plain_dict_and_the_token_was_sent(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path, token="secret") as api:
        server.tokens.add("secret")
        assert (await api.get(ONE))["spec"] == {"configuration": {"gates": 1}}
        assert [seen.authorization for seen in server.statistics.requests] == ["Bearer secret"]


async def test_a_list_comes_with_its_version(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        answer = await api.get(PATH)
        assert [item["metadata"]["name"] for item in answer["items"]] == ["kubevirt"]
        assert answer["metadata"]["resourceVersion"] == str(server.store.version)


async def test_a_patch_of_a_status_changes_the_status_alone(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        capacity = {"example.com/gpu": "2", "cpu": "4"}
        server.store.put(NODES, {"metadata": {"name": "node1"}, "status": {"capacity": capacity}})
        removal = [{"op": "remove", "path": "/status/capacity/example.com~1gpu"}]
        answer = await api.patch("/api/v1/nodes/node1/status", removal)
        assert answer["status"] == {"capacity": {"cpu": "4"}}
        labelled = {"metadata": {"labels": {"zone": "edge"}}}
        answer = await api.patch("/api/v1/nodes/node1", labelled, MERGE_PATCH)
        assert answer["metadata"]["labels"] == {"zone": "edge"}


async def test_what_is_created_comes_back_with_its_uid(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        event = {"metadata": {"generateName": "node1."}, "reason": "DeviceUnhealthy"}
        made = await api.create("/api/v1/namespaces/default/events", event)
        assert (made["reason"], bool(made["metadata"]["uid"])) == ("DeviceUnhealthy", True)


@pytest.mark.parametrize(
    ("code", "says", "hint"),
    [
        (401, "401 Unauthorized", "credentials"),
        (403, "403 Forbidden", "ClusterRole"),
        (404, "404 Not Found", "install"),
        (409, "409 Conflict", ""),
        (500, "500 Internal Server Error", ""),
    ],
)
async def test_a_refusal_says_what_was_asked_and_what_to_do(
    code: int, says: str, hint: str, tmp_path: Path
) -> None:
    async with served() as server, session(server, tmp_path) as api:
        server.faults.set("status", Refusal(code))
        with pytest.raises(ClusterUnavailable) as caught:
            await api.get(ONE)
        assert caught.value.status == code
        names(caught.value.what, f"GET {ONE}", says)
        assert hint in caught.value.hint


async def test_each_of_many_requests_at_once_gets_its_refusal(tmp_path: Path) -> None:
    statuses: list[int] = []

    async def ask(api: Session) -> None:
        with pytest.raises(ClusterUnavailable) as caught:
            await api.get(ONE)
        statuses.append(caught.value.status)

    async with served() as server, session(server, tmp_path) as api:
        server.faults.set("status", Refusal(401))
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask, api)
        assert statuses == [401] * 20
        server.faults.clear("status")
        assert await api.get(ONE)


async def test_a_refusal_of_a_patch_has_the_words_of_the_server(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        with pytest.raises(ClusterUnavailable, match="does not fit") as caught:
            await api.patch(ONE, [{"op": "remove", "path": "/spec/nothing"}])
        assert caught.value.status == 422


async def test_the_seconds_of_retry_after_are_told(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        server.faults.set("status", Refusal(429, after=7))
        with pytest.raises(ClusterUnavailable) as caught:
            await api.get(ONE)
        assert caught.value.after == 7.0


@pytest.mark.parametrize(("fault", "says"), [("garbage", "no JSON"), ("drop", "GET")])
async def test_what_is_no_answer_is_unavailable(fault: str, says: str, tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        server.faults.set(fault)
        with pytest.raises(ClusterUnavailable, match=says):
            await api.get(PATH)
        server.faults.clear(fault)
        assert await api.get(PATH)


async def test_a_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        await server.stop()
        with pytest.raises(ClusterUnavailable, match=r"Cannot connect to host"):
            await api.get(PATH)


@virtual.TIME
async def test_an_answer_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        server.faults.set("slow", 60.0)
        began = anyio.current_time()
        with pytest.raises(ClusterUnavailable, match="does not answer"):
            await api.get(PATH)
        with pytest.raises(ClusterUnavailable, match="does not answer"):
            async with api.stream(PATH, [("watch", "true")], silence=300.0):
                pass
        assert anyio.current_time() - began == pytest.approx(Timeouts().api_silence * 2 + 5.0, abs=0.5)


async def test_an_answer_is_read_up_to_a_limit(tmp_path: Path) -> None:
    async with served() as server:
        server.store.put(KUBEVIRTS, cr(1, padding="x" * 2000))
        async with Session(
            Credentials(server.kubeconfig(tmp_path / "config")), Timeouts(), max_answer=1000
        ) as api:
            with pytest.raises(ClusterUnavailable, match="larger than"):
                await api.get(PATH)


CASES = [
    pytest.param("", "service account", id="no service account"),
    pytest.param("absent", "kubeconfig .*absent", id="no file"),
    pytest.param("words", "kubeconfig .*words", id="not a kubeconfig"),
]


@pytest.mark.parametrize(("name", "says"), CASES)
async def test_credentials_that_cannot_be_used_are_told_in_two_lines(
    name: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text("no: [kubeconfig")
    path = str(tmp_path / name) if name else ""
    async with Session(Credentials(path, account=tmp_path, environ={}), Timeouts()) as api:
        with pytest.raises(ClusterUnavailable, match=says) as caught:
            await api.get(PATH)
        assert len(caught.value.lines().splitlines()) == 2


@pytest.fixture
def authority(tmp_path: Path) -> Certificates:
    """An authority that has signed a certificate for loopback."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl")
    made = Certificates(tmp_path / "certificates")
    made.sign("server", "/CN=server")
    return made


@pytest.fixture
async def secure(authority: Certificates) -> AsyncIterator[FakeApiServer]:
    """A server with TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.path("server.crt"), authority.path("server.key"))
    async with FakeApiServer(tls=context) as server:
        server.store.put(KUBEVIRTS, cr(1))
        yield server


def trust(folder: Path, authority: Certificates) -> None:
    (folder / "ca.crt").write_bytes(Path(authority.path("ca.crt")).read_bytes())


def account(folder: Path, authority: Certificates, server: FakeApiServer) -> Credentials:
    """A service account as the kubelet mounts it."""
    folder.mkdir()
    (folder / "token").write_text("first")
    trust(folder, authority)
    host, _, port = server.url.removeprefix("https://").partition(":")
    return Credentials(account=folder, environ={HOST: host, "KUBERNETES_SERVICE_PORT": port})


async def test_a_service_account_is_used_over_tls_and_its_token_read_again_after_a_401(
    secure: FakeApiServer, authority: Certificates, tmp_path: Path
) -> None:
    credentials = account(tmp_path / "account", authority, secure)
    secure.tokens.add("first")
    async with Session(credentials, Timeouts()) as api:
        assert await api.get(ONE)
        secure.tokens.clear()
        secure.tokens.add("second")
        (tmp_path / "account/token").write_text("second")
        with pytest.raises(ClusterUnavailable, match="401"):
            await api.get(ONE)
        assert await api.get(ONE)


async def test_a_server_of_another_authority_is_refused_until_its_own_is_known(
    secure: FakeApiServer, authority: Certificates, tmp_path: Path
) -> None:
    other = Certificates(tmp_path / "other")
    credentials = account(tmp_path / "account", other, secure)
    secure.tokens.add("first")
    async with Session(credentials, Timeouts()) as api:
        with pytest.raises(ClusterUnavailable, match=r"(?i)certificate verify failed"):
            await api.get(ONE)
        assert secure.statistics.requests == []
        trust(tmp_path / "account", authority)
        assert await api.get(ONE)
