# SPDX-License-Identifier: Apache-2.0
"""The KubeVirt CR: what is read of it, what is refused alone, and which one counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster import kubevirt
from nodeagent.model.host import Kind
from nodeagent.model.kubevirt import (
    KubeVirtCR,
    MdevsConfiguration,
    Permitted,
)
from nodeagent.model.spec import NodeTypes, WantedType
from tests.cluster.crs import GUIDE, T4, VGPU, document, read
from tests.facts import names

PCI, MDEV, USB = (f"permittedHostDevices.{key}" for key in ("pciHostDevices", "mediatedDevices", "usb"))
TYPES = "mediatedDevicesConfiguration"


def test_the_first_example_of_the_user_guide_is_read_as_it_stands() -> None:
    found = read(GUIDE)
    assert found.permitted == (
        Permitted(Kind.PCI, "nvidia.com/TU104GL_Tesla_T4", ("10de:1eb8",), True, f"{PCI}[0]"),
        Permitted(Kind.PCI, "intel.com/qat", ("8086:6f54",), False, f"{PCI}[1]"),
        Permitted(Kind.MDEV, "nvidia.com/GRID_T4-1Q", ("GRID T4-1Q",), False, f"{MDEV}[0]"),
    )
    assert (found.namespace, found.name, found.refused, found.fault) == ("kubevirt", "kubevirt", (), None)


def test_a_part_of_a_cr_is_read_as_the_user_guide_shows_it() -> None:
    assert kubevirt.cr({"configuration": {"permittedHostDevices": GUIDE}}).permitted == read(GUIDE).permitted


def test_a_usb_bundle_of_the_user_guide_keeps_its_selectors_in_order() -> None:
    pairs = [("045e", "07a5"), ("062a", "4102"), ("072F", "b100")]
    selectors = [{"vendor": vendor, "product": product} for vendor, product in pairs]
    found = read({"usb": [{"resourceName": "kubevirt.io/peripherals", "selectors": selectors}]})
    expected = ("045e:07a5", "062a:4102", "072f:b100")
    assert found.permitted == (Permitted(Kind.USB, "kubevirt.io/peripherals", expected, False, f"{USB}[0]"),)


def test_a_section_that_is_missing_differs_from_one_that_is_empty() -> None:
    assert (read().permitted, read().mdevs) == (None, None)
    assert (read({}, {}).permitted, read({}, {}).mdevs) == ((), MdevsConfiguration())
    nothing: list[dict[str, Any]] = [{}, {"spec": None}, {"spec": {}}, {"spec": {"configuration": None}}]
    for empty in nothing:
        assert kubevirt.cr({"kind": "KubeVirt", **empty}) == KubeVirtCR()


def test_the_types_of_the_user_guide_are_read_in_their_order() -> None:
    found = read(
        None,
        {
            "mediatedDevicesTypes": ["nvidia-222", "nvidia-228"],
            "nodeMediatedDeviceTypes": [
                {
                    "nodeSelector": {"kubernetes.io/hostname": "nodeName"},
                    "mediatedDevicesTypes": ["nvidia-234"],
                }
            ],
        },
    )
    node = NodeTypes((("kubernetes.io/hostname", "nodeName"),), (WantedType("nvidia-234"),))
    assert found.mdevs == MdevsConfiguration(
        (WantedType("nvidia-222"), WantedType("nvidia-228")), (node,), None
    )


@pytest.mark.parametrize(
    ("new", "old", "read_as"),
    [(["a"], ["b"], ("a",)), ([], ["b"], ("b",)), (None, ["b"], ("b",)), (["a"], None, ("a",)), ([], [], ())],
)
def test_the_deprecated_list_counts_where_the_new_one_is_empty(new: Any, old: Any, read_as: Any) -> None:
    lists = {"mediatedDeviceTypes": new, "mediatedDevicesTypes": old}
    found = read(None, {**lists, "nodeMediatedDeviceTypes": [{"nodeSelector": {}, **lists}]})
    types = tuple(map(WantedType, read_as))
    assert found.mdevs == MdevsConfiguration(types, (NodeTypes((), types),))


def test_overrides_beside_their_section_are_told_as_what_kubevirt_does_not_read() -> None:
    found = kubevirt.cr(document({TYPES: {}, "nodeMediatedDeviceTypes": [{"nodeSelector": {}}]}))
    assert [(each.subject, each.hint) for each in found.refused] == [
        ("nodeMediatedDeviceTypes", f"move it into {TYPES}")
    ]


@pytest.mark.parametrize(
    ("section", "gates", "makes"),
    [
        (None, (), True),
        ({}, (), True),
        ({}, ("DisableMDEVConfiguration",), False),
        (None, ("DisableMDEVConfiguration",), False),
        ({"enabled": True}, ("DisableMDEVConfiguration",), True),
        ({"enabled": True}, (), True),
        ({"enabled": False}, (), False),
        ({"enabled": "false"}, (), True),
    ],
)
def test_virt_handlers_own_switch_is_read_as_kubevirt_reads_it(section: Any, gates: Any, makes: bool) -> None:
    assert read(None, section, gates).virt_handler_makes_mdevs is makes


def test_a_gate_that_is_listed_and_disabled_does_not_count() -> None:
    gates = {"featureGates": ["HostDevices", "GPUsWithDRA", ""], "disabledFeatureGates": ["GPUsWithDRA"]}
    found = kubevirt.cr(document({"developerConfiguration": gates}))
    assert found.gates == {"HostDevices"}
    assert [each.subject for each in found.refused] == ["developerConfiguration.featureGates[2]"]


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({**T4, "pciVendorSelector": "10de"}, ("pciVendorSelector", '"10de"')),
        ({**T4, "pciVendorSelector": "0x10de:1eb8"}, ("pciVendorSelector", '"0x10de:1eb8"')),
        ({**T4, "pciVendorSelector": "10de:*"}, ("pciVendorSelector", '"10de:*"')),
        ({**T4, "pciVendorSelector": 10}, ("pciVendorSelector", "number")),
        ({"resourceName": "a.b/c"}, ("pciVendorSelector", "missing")),
        ({"pciVendorSelector": "10de:1eb8"}, ("resourceName", "missing")),
        ({**T4, "resourceName": ""}, ("resourceName", "empty")),
        ({**T4, "resourceName": ["a.b/c"]}, ("resourceName", "list")),
        ({**T4, "resourceName": "a.b/c\x1b[2J"}, ("resourceName", '"a.b/c\\x1b[2J"')),
        ({**T4, "resourceName": "a.b/\ud800"}, ("resourceName", '"a.b/\\ud800"')),
        ({**T4, "resourceName": f"a.b/{'c' * 314}"}, ("resourceName", 318)),
        ({**T4, "externalResourceProvider": "yes"}, ("externalResourceProvider", '"yes"')),
    ],
)
def test_a_pci_entry_that_cannot_be_meant_is_refused_alone_with_its_place(
    entry: Any, what: tuple[object, ...]
) -> None:
    found = read({"pciHostDevices": [T4, entry, T4]})
    assert found.permitted is not None
    assert [each.place for each in found.permitted] == [f"{PCI}[0]", f"{PCI}[2]"]
    (refused,) = found.refused
    assert refused.subject == f"{PCI}[1]"
    names(refused.message, *what)
    assert refused.hint
    assert f"{refused.message}{refused.hint}".isprintable()
    assert len(refused.message) < 200


@pytest.mark.parametrize("selector", ["", " ", "_", None, {}, "GRID\nT4"])
def test_an_mdev_entry_without_a_name_of_a_type_is_refused_alone(selector: Any) -> None:
    found = read({"mediatedDevices": [{**VGPU, "mdevNameSelector": selector}, VGPU]})
    assert found.permitted is not None
    assert [each.place for each in found.permitted] == [f"{MDEV}[1]"]
    assert [each.subject for each in found.refused] == [f"{MDEV}[0]"]


@pytest.mark.parametrize(
    "selectors",
    [
        None,
        [],
        [{"vendor": "0x46f4", "product": "0001"}],
        [{"vendor": "46f4", "product": "1"}],
        [{"vendor": "46f4"}],
        [{"vendor": "46f4", "product": "0001"}, {"vendor": 1, "product": "0001"}],
    ],
)
def test_a_usb_bundle_of_which_a_part_cannot_be_meant_is_refused_as_a_whole(selectors: Any) -> None:
    found = read({"usb": [{"resourceName": "a.b/c", "selectors": selectors}]})
    assert found.permitted == ()
    assert found.refused
    assert all(each.subject.startswith(f"{USB}[0]") for each in found.refused)


def test_the_name_of_a_usb_bundle_that_others_provide_is_permitted_without_selectors() -> None:
    found = read({"usb": [{"resourceName": "a.b/c", "externalResourceProvider": True}]})
    assert found.refused == ()
    assert found.permitted == (Permitted(Kind.USB, "a.b/c", (), True, f"{USB}[0]"),)


def test_names_that_only_the_kubelet_refuses_are_let_through_to_whoever_knows_its_rules() -> None:
    names = ["nvidia.com/GeForce RTX 2060 Rev. A", "no-slash", "a/b/c", "../../etc/passwd"]
    found = read({"pciHostDevices": [{**T4, "resourceName": name} for name in names]})
    assert found.permitted is not None
    assert [each.resource for each in found.permitted] == names


@pytest.mark.parametrize("selector", [None, {"zone": "\n"}])
def test_an_override_without_labels_that_can_be_meant_is_refused_alone(selector: Any) -> None:
    overrides = [{"nodeSelector": selector, "mediatedDeviceTypes": ["a"]}, {"nodeSelector": {"x": "y"}}]
    found = read(None, {"mediatedDeviceTypes": ["b", ""], "nodeMediatedDeviceTypes": overrides})
    assert found.mdevs == MdevsConfiguration((WantedType("b"),), (NodeTypes((("x", "y"),)),))
    assert [each.subject for each in found.refused] == [
        f"{TYPES}.mediatedDeviceTypes[1]",
        f"{TYPES}.nodeMediatedDeviceTypes[0]",
    ]


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (None, ("KubeVirt object",)),
        ([], ("KubeVirt object", "list")),
        ({"kind": "Pod"}, ("KubeVirt object", '"Pod"')),
        ({"kind": "KubeVirt", "spec": "x"}, ("spec", '"x"')),
        ({"kind": "KubeVirt", "spec": {"configuration": []}}, ("spec.configuration", "list")),
        (document({"permittedHostDevices": 7}), ("spec.configuration.permittedHostDevices", "number")),
        (document({TYPES: True, "permittedHostDevices": GUIDE}), (f"spec.configuration.{TYPES}",)),
    ],
)
def test_a_cr_whose_sections_are_of_another_type_is_at_fault_and_says_nothing(
    broken: Any, what: tuple[str, ...]
) -> None:
    found = kubevirt.cr(broken)
    assert found.fault is not None
    names(found.fault.message, *what)
    assert (found.permitted, found.mdevs, found.refused) == (None, None, ())


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"permittedHostDevices": {"pciHostDevices": "10de:1eb8"}}, PCI),
        ({"permittedHostDevices": {"pciHostDevices": [T4, "10de:1eb8"]}}, f"{PCI}[1]"),
        ({"permittedHostDevices": {"pciHostDevices": [None]}}, f"{PCI}[0]"),
        ({"permittedHostDevices": {"mediatedDevices": {"0": VGPU}}}, MDEV),
        ({"permittedHostDevices": {"usb": 7}}, USB),
        (
            {"permittedHostDevices": {"usb": [{"resourceName": "a.b/c", "selectors": {}}]}},
            f"{USB}[0].selectors",
        ),
        (
            {"permittedHostDevices": {"usb": [{"resourceName": "a.b/c", "selectors": ["46f4:0001"]}]}},
            f"{USB}[0].selectors[0]",
        ),
        ({TYPES: {"mediatedDeviceTypes": "nvidia-222"}}, f"{TYPES}.mediatedDeviceTypes"),
        ({TYPES: {"mediatedDevicesTypes": ["a", 7]}}, f"{TYPES}.mediatedDevicesTypes[1]"),
        ({TYPES: {"nodeMediatedDeviceTypes": "a"}}, f"{TYPES}.nodeMediatedDeviceTypes"),
        ({"developerConfiguration": {"featureGates": "HostDevices"}}, "developerConfiguration.featureGates"),
    ],
)
def test_a_cr_with_a_list_or_an_entry_of_another_type_is_at_fault_and_says_nothing(
    section: Any, place: str
) -> None:
    found = kubevirt.cr(document({"permittedHostDevices": GUIDE, **section}))
    assert found.fault is not None
    assert found.fault.message.startswith(f"spec.configuration.{place}: it is ")
    assert (found.permitted, found.mdevs, found.gates, found.refused) == (None, None, frozenset(), ())


@pytest.mark.parametrize("selector", ["zone=edge", [], {"zone": 1}, {1: "edge"}])
def test_a_cr_with_labels_of_another_type_is_at_fault(selector: Any) -> None:
    found = read(None, {"nodeMediatedDeviceTypes": [{"nodeSelector": selector}]})
    assert found.fault is not None
    assert f"{TYPES}.nodeMediatedDeviceTypes[0].nodeSelector: it is " in found.fault.message


def test_thousands_of_entries_good_and_bad_are_each_judged() -> None:
    entries = [{**T4, "resourceName": f"a.b/c{n}" if n % 2 else n} for n in range(10_000)]
    found = read({"pciHostDevices": entries})
    assert found.permitted is not None
    assert (len(found.permitted), len(found.refused)) == (5_000, 5_000)


def cr(name: str, phase: Any = "Deployed", **metadata: Any) -> dict[str, Any]:
    return {**document({}, name=name, **metadata), "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ([], None),
        ([cr("a")], "a"),
        ([cr("a", ""), cr("b", None), {"metadata": {"name": "c"}}, None, 7], None),
        ([cr("a", deletionTimestamp="2026-01-01T00:00:00Z"), cr("b", "Deploying")], "b"),
        ([cr("a", "Deploying"), cr("b")], "b"),
        ([cr("a", creationTimestamp="2026-02-01"), cr("b", creationTimestamp="2026-01-01")], "b"),
        ([cr("b"), cr("a"), cr("c")], "a"),
    ],
)
def test_of_several_crs_the_one_that_virt_operator_serves_counts(found: Any, name: str | None) -> None:
    for order in (found, list(reversed(found))):
        chosen = kubevirt.chosen(order)
        assert (None if chosen is None else chosen["metadata"]["name"]) == name


KEYS = st.sampled_from(
    [
        *("kind", "metadata", "spec", "status", "configuration", "permittedHostDevices", "pciHostDevices"),
        *("mediatedDevices", "usb", "selectors", "resourceName", "pciVendorSelector", "mdevNameSelector"),
        *(
            "externalResourceProvider",
            "vendor",
            "product",
            "mediatedDevicesConfiguration",
            "enabled",
            "phase",
        ),
        *("mediatedDeviceTypes", "mediatedDevicesTypes", "nodeMediatedDeviceTypes", "nodeSelector", "name"),
        *("developerConfiguration", "featureGates", "disabledFeatureGates"),
    ]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400) | st.just("10DE:1EB8"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=6),
    max_leaves=30,
)


def printable(found: KubeVirtCR) -> bool:
    told = [text for each in found.refused for text in (each.subject, each.message, each.hint)]
    told += [text for entry in found.permitted or () for text in (entry.resource,)]
    return all(text.isprintable() for text in told)


@given(ANY)
def test_whatever_comes_is_read_without_an_exception_and_told_on_lines_that_can_be_printed(
    value: Any,
) -> None:
    for inside in (
        value,
        {"spec": value},
        document(value),
        document({"permittedHostDevices": value, TYPES: value, "developerConfiguration": value}),
        document({"permittedHostDevices": {"pciHostDevices": [value], "usb": [value]}, TYPES: {}}),
    ):
        assert printable(kubevirt.cr(inside))
    kubevirt.chosen([value, {"status": value, "metadata": value}, cr("a")])
