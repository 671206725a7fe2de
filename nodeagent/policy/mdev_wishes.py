# SPDX-License-Identifier: Apache-2.0
"""What is wanted of mdevs and vGPUs: configuration, files of other tools, KubeVirt CR → MdevsWanted. Pure.

Of a vgpu-device-manager file one configuration counts: that of the node's label, else the default of the
settings; what nodeagent cannot do in the others is nobody's mistake. What the CR wants counts where the
configuration wants nothing by itself. virt-handler removes each mdev that its own configuration does not
name, whoever made it (its mediated_devices_types.go): where it would, nothing is made or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.desired import MdevsWanted, WantedType
from nodeagent.model.kubevirt import MdevsConfiguration
from nodeagent.model.problem import Problem, misconfigured
from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nodeagent.model.configuration import Configuration, VgpuConfiguration
    from nodeagent.model.desired import CardTypes
    from nodeagent.model.kubevirt import KubeVirtCR

    Labels = Mapping[str, str]

VGPU_CONFIG = "nvidia.com/vgpu.config"
"""The label by which vgpu-device-manager chooses a node's configuration."""
SWITCH = "set mediatedDevicesConfiguration.enabled: false in the KubeVirt CR"


def wanted(configuration: Configuration, cr: KubeVirtCR | None, labels: Labels) -> MdevsWanted:
    """All wishes for mdevs of a node with these labels; ``manage`` is off where they cannot be met."""
    wishes = _wishes(configuration, cr, labels)
    for found in obstacles(configuration, cr, labels):
        place = f"{found.about}: " if found.about else ""
        return wishes._replace(manage=False, obstacle=f"{place}{found.what}; {found.hint}")
    return wishes


def obstacles(configuration: Configuration, cr: KubeVirtCR | None, labels: Labels) -> Iterator[Problem]:
    """Why nothing is made or removed, although somebody wants it."""
    yield from vgpu_findings(configuration, labels)
    if cr is None or not cr.virt_handler_makes_mdevs:
        return
    if _of_cr(configuration):
        what = "virt-handler makes and removes mdevs itself, so nodeagent makes and removes none"
        yield misconfigured("kubevirt.manageMdevs", what, SWITCH)
        return
    wishes = _wishes(configuration, cr, labels)
    lost = _unprotected(wishes, cr, labels) if wishes.manage else ()
    for name in list(lost)[:1]:
        what = f'virt-handler would remove mdevs of the type "{name}", so nodeagent makes and removes none'
        yield misconfigured(
            "mdevs.manage",
            what,
            f"{SWITCH}, or list all types there as external, spelled as here",
        )


def odd(configuration: Configuration, cr: KubeVirtCR | None) -> Iterator[Problem]:
    """Wishes of the CR that do not count, because the configuration has its own."""
    both = configuration.kubevirt.manage_mdevs and _has_own(configuration)
    if both and cr is not None and cr.mdevs is not None:
        what = "the configuration says itself which mdevs to make, so the KubeVirt CR does not"
        yield misconfigured(
            "kubevirt.manageMdevs",
            what,
            "remove it, or what mdevs says of types and of files",
        )


def vgpu_findings(configuration: Configuration, labels: Labels) -> Iterator[Problem]:
    """Why the configuration of a vgpu-device-manager file that is chosen cannot be carried out."""
    vgpu, name = configuration.imported.vgpu, _chosen_name(configuration, labels)
    if vgpu is None or not name:
        return
    chosen = _chosen(configuration, labels)
    fault = vgpu.fault or (chosen.fault if chosen is not None else None)
    if fault is not None:
        yield fault
    elif chosen is None:
        hint = naming.nearest(name, (known.name for known in vgpu.configurations))
        yield misconfigured(vgpu.path, f'it has no configuration "{name}"', hint)


def unchosen(configuration: Configuration, labels: Labels) -> Iterator[str]:
    """A warning where a vgpu-device-manager file is named, and nothing of it."""
    if configuration.imported.vgpu is not None and not _chosen_name(configuration, labels):
        what = "mdevs.vgpuConfigFile is set, but no configuration of it is chosen"
        yield f"{what}; set mdevs.vgpuConfig, or the label {VGPU_CONFIG} in node.labels"


def _wishes(configuration: Configuration, cr: KubeVirtCR | None, labels: Labels) -> MdevsWanted:
    """The wishes, whether they can be carried out or not."""
    written, definitions = configuration.mdevs, configuration.imported.mdevctl
    own = MdevsWanted(
        manage=written.manage,
        types=written.types,
        nodes=written.nodes,
        adopt=written.adopt,
        excluded=written.exclude,
        protected=() if cr is None else _external(cr),
        cards=_cards(configuration, labels),
        definitions=definitions.wanted,
        defined=definitions.uuids,
        reserved=definitions.reserved,
    )
    if cr is None or not _of_cr(configuration):
        return own
    asked = cr.mdevs or MdevsConfiguration()  # without the section the CR wants nothing
    return own._replace(manage=True, types=asked.types, nodes=asked.nodes, cards=(), definitions=())


def _of_cr(configuration: Configuration) -> bool:
    """True if the CR is to say which mdevs are made."""
    return configuration.kubevirt.manage_mdevs and not _has_own(configuration)


def _has_own(configuration: Configuration) -> bool:
    """True if the configuration says by itself which mdevs are made."""
    written = configuration.mdevs
    sources = (written.types, written.nodes, written.mdevctl, written.vgpu_config_file)
    return written.manage and any(sources)


def _external(cr: KubeVirtCR) -> tuple[str, ...]:
    """The types that the CR leaves to other providers: virt-handler removes no mdev of them."""
    mdevs = () if cr.permitted is None else cr.permitted.mdevs
    return tuple(dict.fromkeys(entry.selector for entry in mdevs if entry.external))


def _unprotected(wishes: MdevsWanted, cr: KubeVirtCR, labels: Labels) -> Iterator[str]:
    """The wanted types that virt-handler would remove, as far as they are spelled alike."""
    from nodeagent.policy.change import card_desired  # here: a node that changes nothing goes without

    section = cr.mdevs or MdevsConfiguration()
    asked = card_desired.for_node(MdevsWanted(types=section.types, nodes=section.nodes), labels)
    kept = {naming.type_called(name) for name in (*_external(cr), *(each.name for each in asked))}
    listed = (
        *card_desired.for_node(wishes, labels),
        *(wish for card in wishes.cards for wish in card.types),
        *(WantedType(definition.type_id) for definition in wishes.definitions),
    )
    words = {name.rpartition("_")[2] for name in kept}  # all that a short name says
    for wish in listed:
        if naming.type_called(wish.name) not in (words if wish.short else kept):
            yield wish.name


def _cards(configuration: Configuration, labels: Labels) -> tuple[CardTypes, ...]:
    chosen = _chosen(configuration, labels)
    return () if chosen is None else chosen.cards


def _chosen(configuration: Configuration, labels: Labels) -> VgpuConfiguration | None:
    """The configuration that counts of a vgpu-device-manager file, if there is one of that name."""
    vgpu, name = configuration.imported.vgpu, _chosen_name(configuration, labels)
    named = () if vgpu is None else (known for known in vgpu.configurations if known.name == name)
    return next(iter(named), None)


def _chosen_name(configuration: Configuration, labels: Labels) -> str:
    """The name that the node's label gives, else the one that the settings give; "" if none does."""
    return labels.get(VGPU_CONFIG) or configuration.mdevs.vgpu_config
