# SPDX-License-Identifier: Apache-2.0
"""Reads a VM from the cluster with the user's credentials, for ``nodeagent explain vmi NAMESPACE/NAME``.

The daemon has no permission to read VMs. The command uses ``--kubeconfig``, or else KUBECONFIG as kubectl
does, or else the settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nodeagent import config
from nodeagent.agent.cluster import inspection
from nodeagent.base.errors import ClusterUnavailable, NodeagentError
from nodeagent.cli import args, cluster, daemon_client
from nodeagent.cluster.api import FORBIDDEN, NOT_FOUND, Object, Session
from nodeagent.cluster.credentials import Credentials

if TYPE_CHECKING:
    import argparse

_ROOT = "/apis/kubevirt.io/v1"
_KINDS = ("virtualmachineinstances", "virtualmachines")
_RIGHTS = "bind the ClusterRole kubevirt.io:view to that user in the namespace, or give another --kubeconfig"


Fetched = tuple[Object, Mapping[str, Object] | None]
"""A VM, and the KubeVirt CRs; None: there is no permission to list them."""


def fetch(options: argparse.Namespace, namespace: str, name: str) -> Fetched:
    """Read the VirtualMachineInstance with that name, else the VirtualMachine, and the KubeVirt CRs.

    :raises NodeagentError: if neither exists, or the API server does not answer.
    """
    credentials = choose_credentials(options)

    async def read(session: Session) -> Fetched:
        vm = await _read_vm(session, namespace, name, credentials)
        return vm, await inspection.listed(session, inspection.KUBEVIRTS)

    return cluster.ask(credentials, options.timeouts, read)


def choose_credentials(options: argparse.Namespace) -> Credentials:
    """The credentials of the user."""
    settings, _ = daemon_client.read_settings(options)
    named = settings.configuration.kubeconfig
    own = os.environ.get("KUBECONFIG", "")
    if own and "kubeconfig" not in config.flags_from(options):
        return Credentials(own)
    return Credentials(named and args.find_root(options).path(named))


async def _read_vm(session: Session, namespace: str, name: str, credentials: Credentials) -> Object:
    for kind in _KINDS:
        try:
            return await session.get(f"{_ROOT}/namespaces/{namespace}/{kind}/{name}")
        except ClusterUnavailable as error:
            if error.status == FORBIDDEN:
                what = f"{credentials} may not get {kind} in the namespace {namespace}"
                raise NodeagentError(what, _RIGHTS) from error
            if error.status != NOT_FOUND:
                raise
    raise NodeagentError(
        f"there is neither a VirtualMachineInstance nor a VirtualMachine {namespace}/{name}",
        f"list them with: kubectl get vmi,vm -n {namespace}; or give a file",
    )
