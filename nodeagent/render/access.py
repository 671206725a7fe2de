# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent cluster check`` prints: one line for each thing, and what to do for each missing one."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.access import AccessReport, Check
from nodeagent.render.answers import AccessAnswer

_WHY_NOT = {
    "false": "kubevirt.enabled is false: this node asks the API server for nothing",
    "auto": "kubevirt.enabled is auto, and there are no credentials: nobody asks the API server for anything",
}
_TRY = "to see what it would need: nodeagent cluster check --kubevirt-enabled true --kubeconfig FILE"


def nothing(enabled: str) -> str:
    """The answer where the settings follow no cluster."""
    return f"{_WHY_NOT[enabled]}\n{_TRY}"


def text(report: AccessReport, credentials: str) -> str:
    """The report; ``credentials`` in words."""
    who = f" as {report.user}" if report.user else ""
    lines = [f"the API server answers{who}, with {credentials}"]
    lines += [line for check in report.checks for line in _lines(check)]
    missing = sum(not check.well and check.required for check in report.checks)
    return "\n".join([*lines, "", f"to look at: {missing}" if missing else "all is well"])


def _lines(check: Check) -> Iterator[str]:
    mark = "yes" if check.well else "NO" if check.required else "no"
    yield f"{mark:4} {check.what}" + (f": {check.why}" if check.why else "")
    if not check.well and check.required:
        yield f"     to do: {check.hint}"


def answer(report: AccessReport | None, credentials: str = "") -> AccessAnswer:
    """The same for programs; None: the settings follow no cluster."""
    if report is None:
        return AccessAnswer(False, "", "", True, ())
    checks = tuple(check._replace(hint="" if check.well else check.hint) for check in report.checks)
    return AccessAnswer(True, report.user, credentials, report.well, checks)
