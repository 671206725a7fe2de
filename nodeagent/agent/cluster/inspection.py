# SPDX-License-Identifier: Apache-2.0
"""``nodeagent cluster check``: checks the permissions and objects that a daemon with these settings needs.

It queries the API server once and changes nothing. Permissions are checked by access reviews of nodeagent's
own user, which every user may create (the ClusterRoles system:basic-user and system:discovery). ``cli`` calls
this module and prints the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nodeagent.agent.cluster import state
from nodeagent.agent.cluster.state import ClusterState
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import fields, kubevirt, slices, watch
from nodeagent.cluster.api import FORBIDDEN, NOT_FOUND, Object, Parameters, Session
from nodeagent.cluster.fields import Notes
from nodeagent.config import Settings
from nodeagent.model.configuration import Configuration
from nodeagent.model.spec import ClusterMode, use_dra
from nodeagent.policy import merge
from nodeagent.policy.dra import writes
from nodeagent.policy.dra.writes import Owner

VERSION, PLURAL = "kubevirt.io/v1", "kubevirts"
DRA, SLICES = "resource.k8s.io", "resourceslices"
KUBEVIRTS, NODES = f"/apis/{VERSION}/{PLURAL}", "/api/v1/nodes"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_USER_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_FOR_EXPLAIN = "only the command nodeagent explain vmi NAMESPACE/NAME needs this permission"
_INSTALL = "install KubeVirt, or set kubevirt.enabled: false"
_NEWER = "upgrade to Kubernetes 1.34 or later, or remove via: dra"
_ENABLE = "enable it on the API server, the scheduler, the controller manager and the kubelet"
_KUBELETS = "system:node:"
_NONE = "create one, or wait until virt-operator deploys it: kubectl get kubevirt -A"


class Right(NamedTuple):
    """One verb on one resource of the API; ``namespace`` and ``name`` are "" for all objects.

    ``purpose``: why the permission is needed. A right that is not ``required`` is needed by a command only,
    not by the daemon.
    """

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    purpose: str = ""
    required: bool = True

    @property
    def object(self) -> str:
        """The resource as kubectl writes it: "kubevirts.kubevirt.io", "nodes/status"."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{resource}.{self.group}" if self.group else resource

    @property
    def rule(self) -> str:
        """The rule of a Role or ClusterRole that grants this right."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f'{{apiGroups: ["{self.group}"], resources: ["{resource}"], verbs: ["{self.verb}"]}}'


class Check(NamedTuple):
    """The result of one check. ``kind``: right, object, entry. ``hint``: the fix if the check is not ``ok``.

    If a check is not ``required``, its failure is no problem.
    """

    kind: str
    subject: str
    ok: bool
    message: str = ""
    hint: str = ""
    required: bool = True


def needed_rights(settings: Settings, node: str) -> Iterator[Right]:
    """The rights at the API server that the settings need.

    The ClusterRole of the chart grants these rights, each only if a setting needs it. Each new use of the API
    server needs one more right here and one more rule in the chart.
    """
    if settings.configuration.following is not ClusterMode.NO:
        yield from _rights_for_kubevirt(settings, node)
    if use_dra(settings.configuration.rules):
        for verb in ("list", "watch", "create", "update", "delete"):
            yield Right(verb, DRA, SLICES, purpose="to publish devices by DRA")
        yield Right("get", "", "nodes", name=node, purpose="to make the Node the owner of ResourceSlices")
        yield Right("get", DRA, "resourceclaims", purpose="to prepare claims")


def _rights_for_kubevirt(settings: Settings, node: str) -> Iterator[Right]:
    for verb in ("list", "watch"):
        yield Right(verb, "kubevirt.io", PLURAL, purpose="to follow the KubeVirt CR")
    for verb in ("list", "watch"):
        yield Right(verb, "", "nodes", name=node, purpose="to follow this Node and its labels")
    if settings.cluster.events:
        for verb in ("create", "patch"):
            yield Right(verb, "", "events", purpose="for cluster.events")
    writers = {
        "cluster.condition": settings.cluster.condition,
        "cluster.staleResources: remove": settings.cluster.stale_resources == "remove",
    }
    if any(writers.values()):
        purpose = " and ".join(key for key, on in writers.items() if on)
        yield Right("patch", "", "nodes", "status", name=node, purpose=f"for {purpose}")
    yield Right("get", "kubevirt.io", "virtualmachineinstances", purpose=_FOR_EXPLAIN, required=False)


async def inspect(session: Session, settings: Settings, node: str) -> tuple[str, tuple[Check, ...]]:
    """Return the name of this node at the API server ("" if it is unknown), and the checks.

    :raises ClusterUnavailable: if the API server does not answer, or rejects our credentials.
    """
    user = await read_user(session)
    rights = needed_rights(settings, node)
    if user.startswith(_KUBELETS):  # they may do what DRA needs, but access reviews need the names of objects
        rights = (right for right in rights if right.group != DRA)
    found = [await check_right(session, right) for right in rights]
    if settings.configuration.following is not ClusterMode.NO:
        found += await _check_kubevirt(session, settings, node)
    if use_dra(settings.configuration.rules):
        found += await _check_dra(session, settings, node)
    return user, tuple(found)


async def _check_kubevirt(session: Session, settings: Settings, node: str) -> list[Check]:
    """Check the KubeVirt CR and the Node. :raises ClusterUnavailable: if there is no answer."""
    known = await serves(session, VERSION, PLURAL)
    found = [Check("object", f"the kind {PLURAL}.kubevirt.io", known, "", _INSTALL)]
    nodes = await listed(session, NODES, (("fieldSelector", f"metadata.name={node}"),))
    crs = await listed(session, KUBEVIRTS) if known else None
    if nodes is not None:
        found.append(
            Check("object", f"the Node {node}", node in nodes, "", "set node.name to the Node's name")
        )
    if crs is not None:
        labels = state.update(ClusterState(), None, nodes, node).config.labels
        found += _of_crs(crs, settings.configuration, labels)
    return found


async def _check_dra(session: Session, settings: Settings, node: str) -> list[Check]:
    """Check the API of DRA, and its feature gates by a dry run of a ResourceSlice.

    :raises ClusterUnavailable: if there is no answer.
    """
    known = await serves(session, f"{DRA}/v1", SLICES)
    found = [Check("object", f"the kind {SLICES}.{DRA} (v1)", known, "", _NEWER)]
    if not known:
        return found
    probe = writes.build_probe(Owner(settings.dra.driver, node, ""))
    try:
        dropped = writes.dropped_fields(probe, await slices.try_slice(session, probe))
    except ClusterUnavailable as error:
        if not error.status:
            raise
        return [*found, Check("object", "a ResourceSlice of this node", False, error.what, error.hint)]
    for field, gate in writes.GATES.items():
        why = f"the API server stores {field} of ResourceSlices"
        found.append(Check("object", f"the feature gate {gate}", field not in dropped, why, _ENABLE, False))
    return found


async def listed(session: Session, path: str, parameters: Parameters = ()) -> dict[str, Object] | None:
    """Return the objects by ``namespace/name``; None if this user is not permitted to list them.

    :raises ClusterUnavailable: if there is no answer that can be read.
    """
    try:
        answer = await session.get(path, parameters)
    except ClusterUnavailable as error:
        if error.status == FORBIDDEN:
            return None
        raise
    return watch.by_key(answer)


async def check_right(session: Session, right: Right) -> Check:
    """Check whether this user has the right. :raises ClusterUnavailable: if there is no answer."""
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    spec = {"resourceAttributes": {key: text for key, text in attributes.items() if text}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    status = fields.table((await session.create(_ACCESS_REVIEWS, review)).get("status"))
    allowed, reason = status.get("allowed") is True, _text(status, "reason")
    why = f"{right.purpose} ({reason})" if reason and not allowed else right.purpose
    hint = f"add the rule {right.rule} to the ClusterRole of this user"
    return Check("right", f"{right.verb} {right.object}", allowed, why, hint, right.required)


async def read_user(session: Session) -> str:
    """Return this user's name at the API server; "" without SelfSubjectReview (before Kubernetes 1.28).

    :raises ClusterUnavailable: if there is no answer, or the API server rejects our credentials.
    """
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "spec": {}}
    try:
        answer = await session.create(_USER_REVIEWS, review)
    except ClusterUnavailable as error:
        if error.status in (FORBIDDEN, NOT_FOUND):
            return ""
        raise
    return _text(fields.table(fields.table(answer.get("status")).get("userInfo")), "username")


async def serves(session: Session, version: str, plural: str) -> bool:
    """True if the API server serves this resource, for example "kubevirt.io/v1", "kubevirts".

    :raises ClusterUnavailable: if there is no answer.
    """
    try:
        answer = await session.get(f"/apis/{version}")
    except ClusterUnavailable as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return any(each.get("name") == plural for _, each in fields.tables(answer, "resources", "", Notes()))


def _text(status: Object, key: str) -> str:
    return fields.text(status, key, "a text", "", Notes()) or ""


def _of_crs(
    crs: Mapping[str, Object], configuration: Configuration, labels: Mapping[str, str] | None
) -> Iterator[Check]:
    """Check the CR that would be in force, and list its entries that would not be in force."""
    document = kubevirt.chosen(crs.values())
    if document is None:
        why = "no KubeVirt CR is deployed (status.phase)" if crs else "there is no KubeVirt CR"
        yield Check("object", "a KubeVirt CR", ok=False, message=why, hint=_NONE)
        return
    cr = kubevirt.cr(document)
    others = f" (in use; the cluster has {len(crs)})" if len(crs) > 1 else ""
    what = f"the KubeVirt CR {cr.namespace}/{cr.name}{others}"
    if cr.fault is not None:
        yield Check("object", what, ok=False, message=cr.fault.message, hint=cr.fault.hint)
        return
    yield Check("object", what, ok=True)
    for each in merge.objections(configuration, cr, labels):
        yield Check("entry", state.place(each), ok=False, message=each.message, hint=each.hint)
