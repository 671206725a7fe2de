# SPDX-License-Identifier: Apache-2.0
"""Exceptions by cause: configuration, kernel, kubelet, cluster, internal.

Every exception that leaves a layer is one of these. Users see two lines: the problem and the fix. Each
layer wraps the errors of its own libraries (``raise … from e``).
"""

from __future__ import annotations

LONGEST = 1000  # most characters of a message that quotes other text


_END = 200  # of these, characters kept at the end, which often contain the cause


def bounded(text: str) -> str:
    """Return the text, shortened in the middle if it is too long for a message."""
    more = len(text) - LONGEST
    return text if more <= 0 else f"{text[: LONGEST - _END]}... ({more} more characters) ...{text[-_END:]}"


def on_one_line(text: str) -> str:
    """Return the text with unprintable characters escaped as in Python."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class NodeagentError(Exception):
    """Base of all exceptions of nodeagent: ``what`` describes the problem, ``hint`` the fix."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def lines(self) -> str:
        """Return the two lines for the user."""
        return f"{self.what}\n{self.hint}" if self.hint else self.what


class ConfigError(NodeagentError):
    """Raised for an error in the configuration: a wrong key, type, selector, name or path.

    Text from the configuration file may be long and contain line ends; both lines of the error quote this
    text shortened and escaped.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(on_one_line(bounded(what)), on_one_line(bounded(hint)))


class KernelRefused(NodeagentError):
    """Raised when the kernel rejects a read or write of a host path, or does not finish it.

    ``interrupting``: the attempt unbound a working driver, which was bound again.
    """

    def __init__(
        self, what: str, hint: str = "", *, errno: int = 0, path: str = "", interrupting: bool = False
    ) -> None:
        super().__init__(what, hint)
        self.errno = errno
        self.path = path
        self.interrupting = interrupting


class KubeletUnavailable(NodeagentError):
    """Raised when the kubelet is absent, refuses, or does not answer; the caller always retries."""


class ClusterUnavailable(NodeagentError):
    """Raised when the API server is absent, refuses, does not answer, or sends an invalid response.

    ``status``: the HTTP status, 0 without a response. ``after``: the server's Retry-After in seconds, or 0.
    """

    def __init__(self, what: str, hint: str = "", *, status: int = 0, after: float = 0.0) -> None:
        super().__init__(what, hint)
        self.status = status
        self.after = after


class AllocationRefused(NodeagentError):
    """Raised when an Allocate is refused; the message appears in the status of the pod."""


class FatalError(NodeagentError):
    """Raised when the process must exit; no component is restarted."""


class AlreadyRunning(FatalError):
    """Raised when another nodeagent already serves this node."""


class CodeReplaced(FatalError):
    """Raised when code that must be loaded was removed by an upgrade."""


class InternalError(NodeagentError):
    """Raised for a bug in nodeagent."""
