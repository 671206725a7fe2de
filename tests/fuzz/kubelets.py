# SPDX-License-Identifier: Apache-2.0
"""What a kubelet says: PodResources, requests to a plugin, its checkpoint.

Messages travel over real sockets, framed as they should be: frames are damaged in ``frames``.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from grpclib.const import Cardinality, Handler
from grpclib.exceptions import GRPCError
from hypothesis import strategies as st

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import checkpoint, podresources
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.kubelet.deviceplugin.service import Plugin
from nodeagent.kubelet.grpc.channel import open_channel
from nodeagent.kubelet.grpc.server import SocketServer
from tests.fuzz import mutations
from tests.fuzz.running import Target
from tests.kubelet.answers import Answers, device

LIST = "/v1.PodResourcesLister/List"
_SERVICE = "/v1beta1.DevicePlugin/"
_TOKENS = (
    b"\x00",
    b"\x08",
    b"\x0a",
    b"\x12",
    b"\x1a",
    b"\x0f",
    b"\xff" * 11,
    b"\x7f",
    b"\x80",
    b"\x0b",
    b"\x0d\0\0\0\0",
)
_PODS = v1.ListPodResourcesResponse(
    [
        v1.PodResources(
            f"pod{number}",
            "ns",
            [
                v1.ContainerResources(
                    "c0",
                    [
                        v1.ContainerDevices(
                            "example.com/gpu",
                            [f"0000:{number:02x}:00.0", f"{number}"],
                            v1.TopologyInfo([v1.NumaNode(number)]),
                        )
                    ],
                )
            ],
        )
        for number in range(5)
    ]
)
_ASKED = v1beta1.AllocateRequest(
    [v1beta1.ContainerAllocateRequest(["a", "b"]), v1beta1.ContainerAllocateRequest(["c"])]
)
_PREFERRED = v1beta1.PreferredAllocationRequest(
    [v1beta1.ContainerPreferredAllocationRequest(["a", "b", "c"], ["a"], 2)]
)
_METHODS: dict[str, tuple[bytes, Any]] = {
    "Allocate": (bytes(_ASKED), v1beta1.AllocateResponse),
    "GetPreferredAllocation": (bytes(_PREFERRED), v1beta1.PreferredAllocationResponse),
    "GetDevicePluginOptions": (b"", v1beta1.DevicePluginOptions),
    "PreStartContainer": (bytes(v1beta1.PreStartContainerRequest(["a"])), v1beta1.PreStartContainerResponse),
}


def answer() -> bytes:
    """An answer of PodResources about five pods."""
    return bytes(_PODS)


class Teller:
    """A PodResources service that answers with these bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def _list(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(self._content)

    def __mapping__(self) -> dict[str, Handler]:
        """The one method."""
        messages = (v1.ListPodResourcesRequest, v1.ListPodResourcesResponse)
        return {LIST: Handler(self._list, Cardinality.UNARY_UNARY, *messages)}


def _heard(content: bytes) -> None:
    async def ask() -> None:
        with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
            server = SocketServer(directory, "kubelet.sock", [Teller(content)], timeouts=Timeouts())
            await server.start()
            try:
                await podresources.PodReader(str(server.path), podresources.VirtHandler(directory), 5).pods()
            except KubeletUnavailable:
                pass
            finally:
                await server.stop(0)

    anyio.run(ask)


async def usable(path: Path) -> None:
    """The plugin answers whoever asks properly. Raises what it does not answer with."""
    async with open_channel(path) as channel:
        await v1beta1.DevicePluginStub(channel).get_device_plugin_options(timeout=5)


def plugin() -> Plugin:
    """The service of a resource with three devices, all of which it grants."""
    listing = Listing((device("a"), device("b", numa=0), device("c", numa=1)))
    return Plugin(listing, Answers(), lambda: None, Timeouts())


def _asked(given: tuple[str, bytes]) -> None:
    method, content = given

    async def ask() -> None:
        with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
            server = SocketServer(directory, "p.sock", [plugin()], timeouts=Timeouts())
            await server.start()
            try:
                await _call(server.path, method, content)
                await usable(server.path)
            finally:
                await server.stop(0)

    anyio.run(ask)


async def _call(path: Path, method: str, content: bytes) -> None:
    """One call with these bytes as its request; any answer or refusal of gRPC will do."""
    types = (Cardinality.UNARY_UNARY, v1beta1.AllocateRequest, _METHODS[method][1])
    try:
        async with (
            open_channel(path) as channel,
            channel.request(_SERVICE + method, *types, timeout=5) as stream,
        ):
            await stream.send_message(content, end=True)
            await stream.recv_message()
    except KubeletUnavailable as error:
        assert isinstance(error.__cause__, GRPCError), f"no answer: {error.what}"


def _request() -> st.SearchStrategy[tuple[str, bytes]]:
    return st.sampled_from(tuple(_METHODS)).flatmap(
        lambda method: st.tuples(st.just(method), mutations.damaged([_METHODS[method][0]], _TOKENS))
    )


def _checkpoint() -> Any:
    granted = v1beta1.ContainerAllocateResponse(
        envs={"PCI_RESOURCE_EXAMPLE_COM_GPU": "0000:3b:00.0"},
        devices=[v1beta1.DeviceSpec("/dev/vfio/10", "/dev/vfio/10", "mrw")],
    )
    entry = {
        "PodUID": "11111111-2222-3333-4444-555555555555",
        "ContainerName": "compute",
        "ResourceName": "example.com/gpu",
        "DeviceIDs": {"0": ["0000:3b:00.0"], "-1": ["10"]},
        "AllocResp": base64.b64encode(bytes(granted)).decode(),
    }
    registered = {"example.com/gpu": ["0000:3b:00.0"], "example.com/empty": None}
    return {
        "Data": {"PodDeviceEntries": [entry, entry | {"PodUID": "2"}], "RegisteredDevices": registered},
        "Checksum": 7,
    }


def _read(content: bytes) -> None:
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path, aside = Path(directory, "kubelet_internal_checkpoint"), Path(directory, ".1")
        path.write_text(json.dumps(_checkpoint()))
        file = checkpoint.CheckpointFile(str(path), directory)
        before = file.read()
        assert before.entries
        aside.write_bytes(content)
        aside.rename(path)
        after, resources = file.read(), checkpoint.known_resources(str(path))
        assert after.possessions == {(each.resource, each.device_id) for each in after.entries}
        try:
            json.loads(content)
        except (ValueError, RecursionError):
            assert not after.readable, "what cannot be read has said something"
            assert resources is None


def _dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def targets() -> list[Target]:
    """All of this module."""
    words = (*mutations.JSON_TOKENS, b"-1", b"9" * 5000, b"\\ud800")
    documents = mutations.misshapen(_checkpoint()).map(_dumped)
    return [
        Target("pod-resources", mutations.damaged([answer()], _TOKENS), _heard),
        Target("plugin", _request(), _asked, lambda given: len(given[1])),
        Target("checkpoint", documents | mutations.damaged([_dumped(_checkpoint())], words), _read),
    ]
