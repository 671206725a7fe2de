# SPDX-License-Identifier: Apache-2.0
"""The other registration method: a socket in the kubelet's plugins_registry directory (pluginregistration
v1).

The kubelet watches the directory, connects to each socket, also after its own restart, and retries
failures. The kubelet does not reconnect after it has ended a stream, so the endpoint then creates a new
socket. One socket serves both the registration and the device plugin. A resource never uses this method and
Register together.
"""

from __future__ import annotations

from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.device_plugin import DevicePlugin
from nodeagent.kubelet.endpoint import VERSION, Endpoint, EndReason
from nodeagent.kubelet.grpc import SocketServer

PLUGIN_TYPE = "DevicePlugin"


class AnnouncedEndpoint(Endpoint):
    """An endpoint that the kubelet discovers in the directory; kubelet.sock is not needed."""

    def is_wanted(self) -> bool:
        """Return True if the directory exists, even if no kubelet watches it."""
        return self._directory.exists

    def create_server(self) -> SocketServer:
        """Bind a socket under a name that the kubelet ignores, and rename it when it accepts connections."""
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
        """Wait until the socket file is removed, or a stream has ended and no new one was opened."""
        while True:
            await self.wait_until(lambda: not server.present or (server.streamed and not server.streams))
            if not server.present:
                return EndReason.SOCKET_GONE
            limit = self._timeouts.plugin_watcher_return
            if not await self.wait_until(lambda: not server.present or server.streams > 0, limit):
                return EndReason.STREAM_ENDED

    def note_connected(self) -> None:
        """Record that the kubelet has connected."""
        self._registrar.note_back()


class _Announcement(pluginregistration.RegistrationBase):
    """Reports the services of the socket to the kubelet, and receives the result of the registration."""

    def __init__(self, endpoint: AnnouncedEndpoint) -> None:
        self._endpoint = endpoint

    async def get_info(self, message: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        """Return the plugin info; an empty endpoint means this same socket."""
        return pluginregistration.PluginInfo(
            type=PLUGIN_TYPE, name=self._endpoint.resource, endpoint="", supported_versions=[VERSION]
        )

    async def notify_registration_status(
        self, message: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        """Record the kubelet's result; after an error the kubelet retries."""
        self._endpoint.note_connected()
        if message.plugin_registered:
            self._endpoint.note_accepted()
        else:
            self._endpoint.note_refused(message.error or "refused without a text")
        return pluginregistration.RegistrationStatusResponse()
