# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain claim NAMESPACE/NAME``: whether this node can give a ResourceClaim its devices.

The claim is read with the user's credentials, as a VM is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.agent.cluster.connection import Connection
from nodeagent.base.errors import ClusterUnavailable, ConfigError, NodeagentError
from nodeagent.base.terminal import table
from nodeagent.cli import args, cluster, daemon_client, fetch_vmi, output
from nodeagent.cluster.api import FORBIDDEN, NOT_FOUND, Object
from nodeagent.policy.dra.claim_files import Node
from nodeagent.policy.dra.writes import pool_name
from nodeagent.policy.explain import claims
from nodeagent.policy.explain.claims import ClaimExplanation, ClaimState
from nodeagent.policy.offer import turn

if TYPE_CHECKING:
    import argparse

_PATH = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
_STATES = {
    ClaimState.PREPARED: "prepared on this node",
    ClaimState.READY: "allocated on this node, not prepared yet",
    ClaimState.REFUSED: "allocated on this node, and cannot be prepared",
    ClaimState.OTHER_NODE: "allocated on another node",
    ClaimState.UNALLOCATED: "not allocated",
}


def run(options: argparse.Namespace) -> int:
    """Print the state of a claim.

    :raises NodeagentError: if there is no such claim, or the API server does not answer.
    """
    namespace, slash, name = (options.machine or "").partition("/")
    if not (namespace and slash and name):
        raise ConfigError("explain claim: no claim is given", "write: nodeagent explain claim NAMESPACE/NAME")
    claim = _fetch(options, namespace, name)
    basis, first_line = daemon_client.read_basis(options)
    settings, _ = daemon_client.read_settings(options)
    driver = settings.dra.driver
    own_node = Connection.of(settings, args.find_root(options)).node
    decision = turn.decide_first(basis.snapshot, basis.matched)
    node = Node(driver, pool_name(driver, own_node), "", "")
    found = claims.explain(claim, node, decision)
    return output.emit(options, "ClaimExplanation", found, lambda: text(found), first_line)


def _fetch(options: argparse.Namespace, namespace: str, name: str) -> Object:
    credentials = fetch_vmi.choose_credentials(options)
    try:
        return cluster.ask(
            credentials, options.timeouts, lambda session: session.get(_PATH.format(namespace, name))
        )
    except ClusterUnavailable as error:
        if error.status == NOT_FOUND:
            raise NodeagentError(
                f"there is no ResourceClaim {namespace}/{name}",
                f"list them with: kubectl get resourceclaims -n {namespace}",
            ) from error
        if error.status == FORBIDDEN:
            raise NodeagentError(
                f"{credentials} may not get resourceclaims in the namespace {namespace}",
                "bind the ClusterRole view to that user in the namespace, or give another --kubeconfig",
            ) from error
        raise


def text(found: ClaimExplanation) -> str:
    """The state of the claim, its devices, or the devices of this node."""
    lines = [f"claim {found.claim}  {_STATES[found.state]}"]
    if found.message:
        lines.append(f"  {found.message}")
    if found.devices:
        lines += ["", table(("REQUEST", "DEVICE", "POOL"), found.devices, indent="  ")]
    if found.state is ClaimState.UNALLOCATED:
        rows = [(each.device, each.resource, each.message or "available") for each in found.on_node]
        head = ("DEVICE", "RESOURCE", "STATE")
        lines += [
            "",
            table(head, rows, indent="  ") if rows else "  no device of this node is offered by DRA",
        ]
    return "\n".join(lines)
