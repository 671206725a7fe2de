# SPDX-License-Identifier: Apache-2.0
"""Register calls to the kubelet (deviceplugin v1beta1), and when to try again. Used by ``endpoint``.

The kubelet dials back and asks for the options before it answers, which may take 10 s; so a call has 20 s.
No refusal is final. ``kubelet.sock`` appears at bind(2), before listen(2), and listen raises no event: hence
the quick tries after its creation for as long as nobody answers. A kubelet that refuses is asked less often.
"""

from __future__ import annotations

from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import grpc
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.socket_dir import Identity

VERSION = "v1beta1"


def delay(attempt: int, age: float, jitter: float, timeouts: Timeouts) -> float:
    """Seconds before try ``attempt`` (0 = the first repeat) at a kubelet.sock of that age in seconds."""
    if is_young(age, timeouts):
        return timeouts.register_retry_young.delay(attempt)
    return timeouts.register_retry.delay(attempt, jitter)


def is_young(age: float, timeouts: Timeouts) -> bool:
    """True if the kubelet may not listen yet on a kubelet.sock of that age."""
    return age < timeouts.young_kubelet_socket


class Registrar:
    """Registers at the kubelet, over a connection for each call: one that is lost ends no other call.

    Also knows whether the kubelet can be reached, and logs once when that changes.
    """

    def __init__(self, path: str, timeouts: Timeouts) -> None:
        self.refused = False  # nobody listens at the socket that is there now
        self._path = path
        self._timeouts = timeouts
        self._away = False

    async def register(self, resource: str, endpoint: str, options: v1beta1.DevicePluginOptions) -> None:
        """Register.

        :raises KubeletAway: if nobody listens.
        :raises KubeletUnavailable: with the kubelet's text, if it did not work otherwise.
        """
        request = v1beta1.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=resource, options=options
        )
        channel = grpc.SocketChannel(self._path)
        stub = v1beta1.RegistrationStub(channel)
        try:
            await grpc.call(stub.register(request, timeout=self._timeouts.register_rpc))
        except grpc.KubeletAway:
            self.refused = True
            self.note_away()
            raise
        finally:
            channel.close()
        self.note_back()

    def note_socket(self, kubelet: Identity | None) -> None:
        """Which socket is at the kubelet's path now; without one it cannot be reached."""
        self.refused = False
        if kubelet is None:
            self.note_away()

    def note_away(self) -> None:
        """The kubelet cannot be reached; logged once, until it answers again."""
        if not self._away:
            log.event(log.KUBELET_GONE, socket=self._path)
        self._away = True

    def note_back(self) -> None:
        """The kubelet has answered, or has connected by itself."""
        self.refused = False
        if self._away:
            log.event(log.KUBELET_BACK, socket=self._path)
        self._away = False
