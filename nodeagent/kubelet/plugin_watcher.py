# SPDX-License-Identifier: Apache-2.0
"""The other way to register: a socket in the kubelet's plugins_registry directory (pluginregistration v1).

The kubelet watches the directory and connects by itself, also after its own restart, and repeats what failed.
It does not come back after it has ended a stream: then the file is created again. One socket serves both the
announcement and the device plugin. Never used beside Register for one resource.
"""

from __future__ import annotations

from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.device_plugin import DevicePlugin
from nodeagent.kubelet.endpoint import VERSION, Endpoint, EndReason
from nodeagent.kubelet.grpc import SocketServer

PLUGIN_TYPE = "DevicePlugin"


class AnnouncedEndpoint(Endpoint):
    """An endpoint that the kubelet finds; the kubelet's own socket does not matter."""

    def is_wanted(self) -> bool:
        """True if there is a directory, whether or not a kubelet watches it."""
        return self._directory.exists

    def create_server(self) -> SocketServer:
        """Bound under a name that the kubelet ignores, then renamed: it never meets half a socket."""
        name = self._directory.new_name(self.resource)
        plugin = DevicePlugin(self.devices, self._answers, self._timeouts)
        return SocketServer(
            self._directory.path,
            f".{name}",
            [plugin, _Announcement(self)],
            self._timeouts,
            publish_as=name,
            on_streams=self._news.touch,
        )

    async def announce(self, server: SocketServer) -> EndReason:
        """Wait until the file is gone, or a stream has ended and none has been opened in its place."""
        while True:
            await self.wait_until(lambda: not server.present or (server.streamed and not server.streams))
            if not server.present:
                return EndReason.SOCKET_GONE
            limit = self._timeouts.plugin_watcher_return
            if not await self.wait_until(lambda: not server.present or server.streams > 0, limit):
                return EndReason.STREAM_ENDED

    def note_connected(self) -> None:
        """The kubelet has connected."""
        self._registrar.note_back()


class _Announcement(pluginregistration.RegistrationBase):
    """Names the services of the socket to the kubelet, and receives its verdict."""

    def __init__(self, endpoint: AnnouncedEndpoint) -> None:
        self._endpoint = endpoint

    async def get_info(self, message: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        """An empty endpoint means: this same socket."""
        return pluginregistration.PluginInfo(
            type=PLUGIN_TYPE, name=self._endpoint.resource, endpoint="", supported_versions=[VERSION]
        )

    async def notify_registration_status(
        self, message: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        """Note the kubelet's verdict; it tries again by itself."""
        self._endpoint.note_connected()
        if message.plugin_registered:
            self._endpoint.note_accepted()
        else:
            self._endpoint.note_refused(message.error or "refused without a text")
        return pluginregistration.RegistrationStatusResponse()
