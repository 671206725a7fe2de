# SPDX-License-Identifier: Apache-2.0
"""The other way to register: a socket in the kubelet's plugins_registry directory (pluginregistration v1).

The kubelet watches the directory and comes by itself, also after its own restart; a failure is tried again by
the kubelet. What it does not do is come back after it has ended a stream: then the file is made anew. One
socket serves both the announcement and the device plugin. Never used beside Register for one resource.
"""

from __future__ import annotations

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.deviceplugin.life import End, Life, Standing
from nodeagent.kubelet.deviceplugin.registration import Registrar
from nodeagent.kubelet.deviceplugin.service import Plugin
from nodeagent.kubelet.deviceplugin.socketdir import SocketDir
from nodeagent.kubelet.grpc.server import Servable, SocketServer

PLUGIN_TYPE = "DevicePlugin"
VERSION = "v1beta1"


class Announcement(pluginregistration.RegistrationBase):
    """Tells the kubelet what the socket serves, and hears whether it was accepted."""

    def __init__(self, resource: str, standing: Standing, registrar: Registrar) -> None:
        self._resource = resource
        self._standing = standing
        self._registrar = registrar

    async def get_info(self, message: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        """An empty endpoint means: this same socket."""
        return pluginregistration.PluginInfo(
            type=PLUGIN_TYPE, name=self._resource, endpoint="", supported_versions=[VERSION]
        )

    async def notify_registration_status(
        self, message: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        """Note the kubelet's verdict; it tries again by itself."""
        self._registrar.back()
        if message.plugin_registered:
            self._standing.accepted()
        else:
            self._standing.refused(message.error or "refused without a text")
        return pluginregistration.RegistrationStatusResponse()


class AnnounceWay:
    """Announces each resource in plugins_registry; the kubelet's own socket does not matter there."""

    def __init__(self, directory: SocketDir, registrar: Registrar, timeouts: Timeouts) -> None:
        """``registrar`` is told that the kubelet has come."""
        self.directory = directory
        self._timeouts = timeouts
        self._registrar = registrar

    @property
    def wanted(self) -> bool:
        """True if there is a directory, whether or not somebody watches it."""
        return self.directory.exists

    def server(self, resource: str, plugin: Plugin, standing: Standing) -> SocketServer:
        """Bound under a name that the kubelet ignores, then renamed: it never meets half a socket."""
        name = self.directory.new_name(resource)
        handlers: list[Servable] = [plugin, Announcement(resource, standing, self._registrar)]
        return SocketServer(self.directory.path, f".{name}", handlers, self._timeouts, publish_as=name)

    async def register(self, life: Life) -> bool:
        """The kubelet comes by itself."""
        return True

    def over(self, life: Life) -> bool:
        """True if the file is gone."""
        return not life.server.present

    async def hold(self, life: Life) -> End:
        """Wait until the file is gone, or a stream has ended and none has come in its place."""
        while True:
            await life.until(lambda: self.over(life) or life.stream_ended)
            if self.over(life):
                return End.SOCKET_GONE
            limit = self._timeouts.plugin_watcher_return
            if not await life.until(lambda: self.over(life) or life.streaming, limit):
                return End.STREAM_ENDED
