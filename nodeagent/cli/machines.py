# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain vmi``: a machine and a KubeVirt CR out of files, judged by what is in force here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.cli import bases, output
from nodeagent.cluster import kubevirt, machines
from nodeagent.config import manifests
from nodeagent.policy.offer import machines as judging
from nodeagent.policy.offer import turn
from nodeagent.render import machine as rendering

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.kubevirt import KubeVirtCR, VirtualMachine

_IN_CLUSTER = re.compile(r"[a-z0-9.-]+/[a-z0-9.-]+")


def explain(options: argparse.Namespace) -> int:
    """Say whether this node can give the machine what it asks for.

    :raises ConfigError: if a file is wrong.
    """
    machine = _machine(options.machine)
    cr = None if options.cr is None else _cr(options.cr)
    basis, first_line = bases.chosen(options, cr=cr)
    told = judging.explain_machine(machine, cr, turn.first(basis.snapshot, basis.matched))
    if options.output == "json":
        return output.answer(output.json_text(rendering.document(told)), first_line)
    return output.answer(rendering.text(told), first_line)


def _machine(path: str | None) -> VirtualMachine:
    if path is None:
        raise ConfigError("explain vmi: no machine is given", "give a file: nodeagent explain vmi FILE")
    if _IN_CLUSTER.fullmatch(path) and not Path(path).exists():
        raise NodeagentError(
            f"{path}: there is no such file, and this version does not ask the cluster for machines",
            f"save it first: kubectl get vmi -n {' -o yaml '.join(path.split('/'))} > FILE",
        )
    found = [each for each in map(machines.machine, manifests.read(path)) if each is not None]
    if len(found) != 1:
        raise ConfigError(
            f"{path}: it holds {len(found) or 'no'} virtual machine{'s' * (len(found) > 1)}",
            "give one object of kind VirtualMachineInstance or VirtualMachine",
        )
    return found[0]


def _cr(path: str) -> KubeVirtCR:
    documents = manifests.read(path)
    chosen = documents[0] if len(documents) == 1 else kubevirt.chosen(documents)
    if chosen is None:
        raise ConfigError(
            f"{path}: it holds no KubeVirt CR that is in use", "give one object of kind KubeVirt"
        )
    cr = kubevirt.cr(chosen)
    if cr.fault is not None:
        raise ConfigError(f"{path}: {cr.fault.what}", cr.fault.hint)
    return cr
