# SPDX-License-Identifier: Apache-2.0
"""The other way to register: a socket in the kubelet's plugins_registry directory (pluginregistration v1).

The kubelet watches the directory and comes by itself, also after its own restart; a failure is tried again by
the kubelet. What it does not do is come back after it has ended a stream: then the file is made anew. One
socket serves both the announcement and the device plugin. Never used beside Register for one resource.
"""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.deviceplugin.endpoint import End, Endpoint
from nodeagent.kubelet.deviceplugin.service import Plugin
from nodeagent.kubelet.grpc.server import Servable, SocketServer

PLUGIN_TYPE = "DevicePlugin"
VERSION = "v1beta1"
COME_BACK = 2.0  # seconds for a restarted kubelet to open the stream again (0.4 s measured on 1.36)


class Announcement(pluginregistration.RegistrationBase):
    """Tells the kubelet what the socket serves, and hears whether it was accepted."""

    def __init__(self, resource: str, on_result: Callable[[str | None], None]) -> None:
        self._resource = resource
        self._on_result = on_result

    async def get_info(self, message: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        """An empty endpoint means: this same socket."""
        return pluginregistration.PluginInfo(
            type=PLUGIN_TYPE, name=self._resource, endpoint="", supported_versions=[VERSION]
        )

    async def notify_registration_status(
        self, message: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        """Note the kubelet's verdict; it tries again by itself."""
        self._on_result(None if message.plugin_registered else message.error or "refused without a text")
        return pluginregistration.RegistrationStatusResponse()


class RegistryEndpoint(Endpoint):
    """An endpoint whose directory is plugins_registry; the kubelet's own socket does not matter."""

    def _wanted(self) -> bool:
        return self._directory.exists

    def _server(self, name: str, service: Plugin) -> SocketServer:
        """Bound under a name that the kubelet ignores, then renamed: it never meets half a socket."""
        handlers: list[Servable] = [service, Announcement(self.resource, self._heard)]
        return SocketServer(self._directory.path, f".{name}", handlers, publish_as=name)

    def _heard(self, error: str | None) -> None:
        self._registrar.back()
        if error is None:
            self._succeeded()
        else:
            self._failed(error)

    async def _registered(self, server: SocketServer, service: Plugin, name: str) -> bool:
        """The kubelet comes by itself."""
        return True

    async def _hold(self, server: SocketServer, service: Plugin) -> End:
        """Wait until the file is gone, or a stream has ended and none has come in its place."""
        while True:
            await self._until(lambda: not server.present or (service.streamed and not service.streams))
            if not server.present:
                return End.SOCKET_GONE
            if not await self._until(lambda: not server.present or service.streams > 0, COME_BACK):
                return End.STREAM_ENDED
