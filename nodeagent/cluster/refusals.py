# SPDX-License-Identifier: Apache-2.0
"""What the API server says instead of an answer, as errors with two lines for a person.

What it says is foreign text: it is cut short, and only what can be printed is shown. Pure: does no I/O.
"""

from __future__ import annotations

import errno
import json

from nodeagent.base.errors import ClusterUnavailable

MOST = 16 * 1024  # bytes of a refusal that are read
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, INVALID, TOO_MANY = 401, 403, 404, 409, 410, 422, 429
_SHOWN = 200  # characters
_HINTS = {
    UNAUTHORIZED: "renew the credentials: they are read again before each further try",
    FORBIDDEN: "give nodeagent the right to do that: see its ClusterRole",
    NOT_FOUND: "install what defines it in the cluster, or switch off what needs it here",
}
_FORBIDDEN = {errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES}  # RestrictAddressFamilies=, IPAddressDeny=
_SANDBOX = "let the service reach the API server: kubevirt.md has the drop-in for systemd"


class Expired(ClusterUnavailable):
    """Raised when a version is too old to be followed from: a new list is wanted."""


class TooLarge(ClusterUnavailable):
    """Raised when an answer or an event is larger than what is read."""

    def __init__(self, what: str, most: int) -> None:
        super().__init__(
            f"{what} is larger than {most >> 20} MiB, and is not read",
            "find the object that is so large, and make it smaller",
        )


def of(request: str, status: int, text: bytes, after: str = "") -> ClusterUnavailable:
    """The error for a status of HTTP; ``after`` is the header Retry-After."""
    kind = Expired if status == GONE else ClusterUnavailable
    what = f"{request}: {status} {_message(text)}".rstrip()
    return kind(what, _HINTS.get(status, ""), status=status, after=_seconds(after))


def silent(request: str) -> ClusterUnavailable:
    """The error for an answer that did not come in time."""
    return ClusterUnavailable(f"{request}: the API server does not answer")


def unreachable(request: str, error: Exception) -> ClusterUnavailable:
    """The error for what the network, TLS or HTTP came to."""
    forbidden = isinstance(error, OSError) and error.errno in _FORBIDDEN
    return ClusterUnavailable(
        f"{request}: {_plain(str(error) or type(error).__name__)}", _SANDBOX if forbidden else ""
    )


def broken_off() -> ClusterUnavailable:
    """The error for a stream that ends right after it has begun."""
    return ClusterUnavailable("the API server ends each stream of events at once")


def unreadable(why: str) -> ClusterUnavailable:
    """The error for an answer that makes no sense."""
    return ClusterUnavailable(
        f"the API server answers what cannot be read: {why}",
        "check that the address leads to a Kubernetes API server, and what is in between",
    )


def _message(text: bytes) -> str:
    """What a Status object says, or the text itself."""
    try:
        said = json.loads(text)["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        said = text.decode(errors="replace")
    return _plain(str(said))


def _plain(text: str) -> str:
    shown = " ".join(text[: 4 * _SHOWN].split())
    return "".join(each for each in shown if each.isprintable())[:_SHOWN]


def _seconds(after: str) -> float:
    """Of Retry-After, which may also be a date (RFC 9110, section 10.2.3); Kubernetes sends seconds."""
    return float(after) if after.isascii() and after.isdigit() else 0.0
