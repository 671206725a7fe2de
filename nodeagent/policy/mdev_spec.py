# SPDX-License-Identifier: Apache-2.0
"""Builds the Spec of mdevs and vGPUs from the configuration, files of other tools and the KubeVirt CR. Pure.

One configuration of a vgpu-device-manager file is used: the one that the node's label names, or else the one
that the settings name. Errors in other configurations are ignored. The CR counts if the configuration has no
desired mdevs of its own. virt-handler removes each mdev that its own configuration does not list, even if
another tool created it (its mediated_devices_types.go): if virt-handler would remove desired mdevs, nodeagent
neither creates nor removes mdevs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.host import Kind
from nodeagent.model.kubevirt import MdevsConfiguration
from nodeagent.model.problem import Problem, misconfigured, virt_handler_conflict
from nodeagent.model.spec import MdevSpec, WantedType
from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nodeagent.model.configuration import Configuration, VgpuConfiguration
    from nodeagent.model.kubevirt import KubeVirtCR

    Labels = Mapping[str, str]

VGPU_CONFIG = "nvidia.com/vgpu.config"
"""The label by which vgpu-device-manager chooses a node's configuration."""
SWITCH = "set mediatedDevicesConfiguration.enabled: false in the KubeVirt CR"


def build_spec(configuration: Configuration, cr: KubeVirtCR | None, labels: Labels) -> MdevSpec:
    """The desired mdevs of a Node with these labels; ``manage`` is off if there is an obstacle."""
    spec = _build_unguarded(configuration, cr, labels)
    for problem in find_obstacles(configuration, cr, labels):
        return spec._replace(manage=False, obstacle=problem)
    return spec


def find_obstacles(configuration: Configuration, cr: KubeVirtCR | None, labels: Labels) -> Iterator[Problem]:
    """Why no mdev is created or removed, although mdevs are configured."""
    _, unusable = choose_vgpu(configuration, labels)
    yield from unusable
    if cr is None or not cr.virt_handler_makes_mdevs:
        return
    if _is_from_cr(configuration):
        text = "virt-handler creates and removes mdevs itself, so nodeagent creates and removes none"
        yield virt_handler_conflict("kubevirt.manageMdevs", text, SWITCH)
        return
    spec = _build_unguarded(configuration, cr, labels)
    for name in _find_unprotected(spec, cr, labels) if spec.manage else ():
        text = f'virt-handler would remove mdevs of the type "{name}", so nodeagent creates and removes none'
        hint = (
            f"{SWITCH}, or list all these types in the KubeVirt CR with externalResourceProvider: "
            "true and the same spelling"
        )
        yield virt_handler_conflict("mdevs.manage", text, hint)
        return


def find_ignored(configuration: Configuration, cr: KubeVirtCR | None) -> Iterator[Problem]:
    """A warning if the KubeVirt CR's list of mdevs is ignored because the configuration has its own."""
    both = configuration.kubevirt.manage_mdevs and _is_configured(configuration)
    if both and cr is not None and cr.mdevs is not None:
        text = "the configuration has its own list of mdevs, so the list of the KubeVirt CR is ignored"
        hint = "remove this setting, or remove the types and files from mdevs"
        yield misconfigured("kubevirt.manageMdevs", text, hint)


def choose_vgpu(
    configuration: Configuration, labels: Labels
) -> tuple[VgpuConfiguration | None, tuple[Problem, ...]]:
    """The chosen configuration of a vgpu-device-manager file, if any, and its problems."""
    vgpu, name = configuration.imported.vgpu, _chosen_name(configuration, labels)
    if vgpu is None or not name:
        return None, ()
    chosen = next((each for each in vgpu.configurations if each.name == name), None)
    fault = vgpu.fault
    if fault is None and chosen is None:
        hint = naming.suggest(name, (each.name for each in vgpu.configurations))
        fault = misconfigured(vgpu.path, f'it has no configuration "{name}"', hint)
    return chosen, () if fault is None else (fault,)


def warn_of_unchosen(configuration: Configuration, labels: Labels) -> Iterator[str]:
    """A warning if a vgpu-device-manager file is set, but none of its configurations is chosen."""
    if configuration.imported.vgpu is not None and not _chosen_name(configuration, labels):
        yield (
            "mdevs.vgpuConfigFile is set, but no configuration of it is chosen; "
            f"set mdevs.vgpuConfig, or the label {VGPU_CONFIG} in node.labels"
        )


def _chosen_name(configuration: Configuration, labels: Labels) -> str:
    """The name of the configuration in the node's label, or else in the settings; "" if neither has one."""
    return labels.get(VGPU_CONFIG) or configuration.mdevs.vgpu_config


def _build_unguarded(configuration: Configuration, cr: KubeVirtCR | None, labels: Labels) -> MdevSpec:
    """The desired mdevs, even if an obstacle prevents their creation."""
    written, definitions = configuration.mdevs, configuration.imported.mdevctl
    vgpu, _ = choose_vgpu(configuration, labels)
    own = MdevSpec(
        manage=written.manage,
        types=written.types,
        nodes=written.nodes,
        adopt=written.adopt,
        excluded=written.exclude,
        protected=() if cr is None else _find_external(cr),
        cards=() if vgpu is None else vgpu.cards,
        definitions=definitions.wanted,
        defined=definitions.uuids,
        reserved=definitions.reserved,
    )
    if cr is None or not _is_from_cr(configuration):
        return own
    asked = cr.mdevs or MdevsConfiguration()  # a CR without the section has no desired mdevs
    return own._replace(manage=True, types=asked.types, nodes=asked.nodes, cards=(), definitions=())


def _is_from_cr(configuration: Configuration) -> bool:
    """True if the KubeVirt CR defines the desired mdevs."""
    return configuration.kubevirt.manage_mdevs and not _is_configured(configuration)


def _is_configured(configuration: Configuration) -> bool:
    """True if the configuration defines desired mdevs."""
    written = configuration.mdevs
    sources = (written.types, written.nodes, written.mdevctl, written.vgpu_config_file)
    return written.manage and any(sources)


def _find_external(cr: KubeVirtCR) -> tuple[str, ...]:
    """The mdev types that the CR leaves to other providers: virt-handler removes no mdevs of these types."""
    mdevs = (entry for entry in cr.permitted or () if entry.kind is Kind.MDEV)
    return tuple(dict.fromkeys(entry.selector for entry in mdevs if entry.external))


def _find_unprotected(spec: MdevSpec, cr: KubeVirtCR, labels: Labels) -> Iterator[str]:
    """The desired types that virt-handler would remove: its lists do not have them in this spelling."""
    from nodeagent.policy.change import desired_types  # here: not needed on a node without changes

    section = cr.mdevs or MdevsConfiguration()
    asked = desired_types.list_for_node(MdevSpec(types=section.types, nodes=section.nodes), labels)
    kept = {naming.normalize_type(name) for name in (*_find_external(cr), *(each.name for each in asked))}
    listed = (
        *desired_types.list_for_node(spec, labels),
        *(each for card in spec.cards for each in card.types),
        *(WantedType(definition.type_id) for definition in spec.definitions),
    )
    words = {name.rpartition("_")[2] for name in kept}  # the short names
    for each in listed:
        if naming.normalize_type(each.name) not in (words if each.short else kept):
            yield each.name
