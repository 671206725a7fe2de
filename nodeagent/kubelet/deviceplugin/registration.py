# SPDX-License-Identifier: Apache-2.0
"""Register with the kubelet, and how long to wait before the next try.

Each call has a connection of its own: one that breaks costs one resource one try.
The kubelet dials back and asks for the options before it answers, which may take 10 s; so a call has 20 s.
No refusal is final. ``kubelet.sock`` appears at bind(2), before listen(2), and listen raises no event: hence
the quick tries after its birth.
"""

from __future__ import annotations

from nodeagent.base import log
from nodeagent.base.backoff import Backoff
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.deviceplugin.socketdir import Identity
from nodeagent.kubelet.grpc.channel import KubeletAway, open_channel

VERSION = "v1beta1"
REGISTER_LIMIT = 20.0  # seconds

_AT_BIRTH = Backoff(first=0.005, limit=0.1)
_LATER = Backoff(first=0.2, limit=10.0)
_BIRTH = 5.0  # seconds in which a young kubelet.sock is tried quickly


def delay(attempt: int, age: float, jitter: float) -> float:
    """Seconds before try ``attempt`` (0 = the first repeat) at a kubelet.sock of that age in seconds."""
    if is_young(age):
        return _AT_BIRTH.delay(attempt)
    return _LATER.delay(attempt, jitter)


def is_young(age: float) -> bool:
    """True if a kubelet.sock of that age is tried quickly; tries are counted anew when that ends."""
    return age < _BIRTH


class Registrar:
    """The kubelet's Registration service, with a connection for each call.

    Also the one that knows whether the kubelet can be reached, and says once when that changes.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._away = False

    async def register(self, resource: str, endpoint: str, options: v1beta1.DevicePluginOptions) -> None:
        """Register; raises KubeletUnavailable with the kubelet's text if it did not work."""
        request = v1beta1.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=resource, options=options
        )
        try:
            async with open_channel(self._path) as channel:
                await v1beta1.RegistrationStub(channel).register(request, timeout=REGISTER_LIMIT)
        except KubeletAway:
            self.away()
            raise
        self.back()

    def seen(self, kubelet: Identity | None) -> None:
        """Who is at the kubelet's path now; where nobody is, nobody can be reached."""
        if kubelet is None:
            self.away()

    def away(self) -> None:
        """Note that the kubelet cannot be reached; said once, until it answers again."""
        if not self._away:
            log.event(log.KUBELET_GONE, socket=self._path)
        self._away = True

    def back(self) -> None:
        """Note that the kubelet has answered, or has come by itself."""
        if self._away:
            log.event(log.KUBELET_BACK, socket=self._path)
        self._away = False
