# SPDX-License-Identifier: Apache-2.0
"""Names: the kubelet's rules, KubeVirt's variables, NVIDIA's naming rule and its repair."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.host import Kind
from nodeagent.policy import naming
from tests import facts

NF200 = "NF200 PCIe 2.0 switch for Quadro Plex S4 / Tesla S870 / Tesla S1070 / Tesla S2050"

VARIABLES = [
    ("nvidia.com/TU104GL_Tesla_T4", Kind.PCI, "PCI_RESOURCE_NVIDIA_COM_TU104GL_TESLA_T4"),
    (
        "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A",
        Kind.PCI,
        "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A",
    ),
    ("intel.com/qat", Kind.PCI, "PCI_RESOURCE_INTEL_COM_QAT"),
    ("nvidia.com/gpu-1.x", Kind.PCI, "PCI_RESOURCE_NVIDIA_COM_GPU-1_X"),
    ("devices.example.org/10de_1bb3", Kind.PCI, "PCI_RESOURCE_DEVICES_EXAMPLE_ORG_10DE_1BB3"),
    ("nvidia.com/GRID_T4-1Q", Kind.MDEV, "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q"),
    ("intel.com/i915-GVTg_V5_4", Kind.MDEV, "MDEV_PCI_RESOURCE_INTEL_COM_I915-GVTG_V5_4"),
]

DEVICES = [
    ("20b0", "GA100 [A100 SXM4 40GB]", "GA100_A100_SXM4_40GB"),
    ("1eb8", "TU104GL [Tesla T4]", "TU104GL_TESLA_T4"),
    ("1e30", "TU102GL [Quadro RTX 6000/8000]", "TU102GL_QUADRO_RTX_6000_8000"),
    ("1f08", "TU106 [GeForce RTX 2060 Rev. A]", "TU106_GEFORCE_RTX_2060_REV__A"),
    ("1ad8", "TU104 USB 3.1 Host Controller", "TU104_USB_3_1_HOST_CONTROLLER"),
    (
        "27a0",
        "AD104M [GeForce RTX 4080 Max-Q / Mobile]",
        "AD104M_GEFORCE_RTX_4080_MAXQ___MOBILE",
    ),
    ("2342", "GH100 [GH200 120GB / 480GB]", "GH100_GH200_120GB___480GB"),
    ("0612", "G92 [GeForce 9800 GTX / 9800 GTX+]", "G92_GEFORCE_9800_GTX___9800_GTX"),
    ("003a", "MCP04 AC'97 Audio Controller", "MCP04_AC97_AUDIO_CONTROLLER"),
    ("2c2c", "GB6-256(N22W-ES-A1)", "GB6256N22WESA1"),
    ("24fa", "GA104 [RTX A4500 Embedded GPU ]", "GA104_RTX_A4500_EMBEDDED_GPU"),
    ("25f9", "GA107 [RTX A1000 Embedded GPU ]", "GA107_RTX_A1000_EMBEDDED_GPU"),
    ("118a", "GK104GL [GRID K520]", "GK104GL_GRID_K520"),
    ("118a", "gk104.gl [grid/k./520]", "GK104_GL_GRID_K__520"),
    ("ffff", None, "ffff"),
    ("5678", "!!!", "5678"),
]

MDEVS = [
    ("nvidia-222", "GRID T4-1Q", "GRID_T4-1Q"),
    ("nvidia-474", "NVIDIA A100-1-5CME\n", "NVIDIA_A100-1-5CME"),
    ("nvidia-22", "GRID P100X-1B", "GRID_P100X-1B"),
    ("i915-GVTg_V5_4", None, "i915-GVTg_V5_4"),
]

VENDORS = [
    ("Advanced Micro Devices, Inc. [AMD/ATI]", "1002", "amd.com"),
    ("Mellanox Technologies", "15b3", "mellanox.com"),
    ("NVIDIA Corporation", "10de", "nvidia.com"),
    ("broadcom", "14e4", "broadcom.com"),
    ("Realtek Semiconductor Co., Ltd.", "10ec", "realtek.com"),
    ("Samsung Electronics Co Ltd", "144d", "samsung.com"),
    ("Intel Corporation", "8086", "intel.com"),
    ("Test Vendor", "1234", "test.com"),
    (None, "1af4", "pci-1af4.nodeagent"),
    ("!!!", "1234", "pci-1234.nodeagent"),
]


@pytest.mark.parametrize(("name", "kind", "variable"), VARIABLES)
def test_the_variable_is_the_one_that_virt_launcher_reads(name: str, kind: Kind, variable: str) -> None:
    assert naming.env_key(kind, name) == variable


@pytest.mark.parametrize(
    "pair", [("a.b/c", "a.b/C"), ("x.y/a.b", "x.y/a_b")], ids=["case", "dot and underscore"]
)
def test_names_that_differ_may_share_a_variable(pair: tuple[str, str]) -> None:
    assert naming.env_key(Kind.PCI, pair[0]) == naming.env_key(Kind.PCI, pair[1])


@pytest.mark.parametrize(("device_id", "text", "expected"), DEVICES)
def test_a_discovered_function_is_named_as_nvidia_names_it(
    device_id: str, text: str | None, expected: str
) -> None:
    name = naming.discovered_name("name", "", "10de", device_id, "NVIDIA Corporation", text)
    assert name == f"nvidia.com/{expected}"


def test_the_plain_rule_leaves_ends_as_they_are() -> None:
    assert naming.nvidia_name("GA104 [RTX A4500 Embedded GPU ]") == "GA104_RTX_A4500_EMBEDDED_GPU_"


def test_a_name_that_is_too_long_is_cut_and_keeps_a_hash_of_the_whole() -> None:
    full = naming.nvidia_name(NF200)
    assert len(full) > 63
    name = naming.discovered_name("name", "", "10de", "05be", "NVIDIA Corporation", NF200)
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]
    assert name == f"nvidia.com/{full[:54]}_{digest}"


@pytest.mark.parametrize(("type_id", "text", "expected"), MDEVS)
def test_a_discovered_mdev_keeps_case_and_hyphens(type_id: str, text: str | None, expected: str) -> None:
    name = naming.discovered_name("name", "", "10de", type_id, "NVIDIA Corporation", text, Kind.MDEV)
    assert name == f"nvidia.com/{expected}"


@pytest.mark.parametrize(("text", "vendor_id", "domain"), VENDORS)
def test_the_domain_comes_from_the_short_name_of_the_vendor(
    text: str | None, vendor_id: str, domain: str
) -> None:
    assert naming.vendor_domain(text, vendor_id) == domain


def test_the_id_style_uses_the_two_ids_below_prefix_or_vendor() -> None:
    text = "NVIDIA Corporation"
    assert naming.discovered_name("id", "", "10DE", "1BB3", text) == "nvidia.com/10de_1bb3"
    prefixed = naming.discovered_name("id", "devices.kubevirt.io", "10de", "1bb3", text)
    assert prefixed == "devices.kubevirt.io/10de_1bb3"


@pytest.mark.parametrize(
    "name",
    [
        "example.com/DEV_x.y-z",
        "example.com/" + "a" * 63,
        "nvidia.com/GRID_T4-1Q",
        "a" * 244 + "/x",
    ],
)
def test_the_kubelet_takes_these_names(name: str) -> None:
    assert naming.describe_fault(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "Example.com/dev",
        "example.com/" + "a" * 64,
        "example.com/-x",
        "dev",
        "/dev",
        "a/b/c",
        "example.com/a b",
        "kubernetes.io/x",
        "notkubernetes.io/x",
        "requests.example.com/x",
        "hugepages-2Mi",
        "a" * 245 + "/x",
        "example.com/x_",
        "example.com/",
        "example..com/x",
        "example.com/x\n",
        "nvidia.com/GeForce RTX 2060 Rev. A",
    ],
)
def test_the_kubelet_refuses_these_names_and_a_person_is_told_what_to_do(name: str) -> None:
    told = naming.describe_fault(name)
    assert told is not None
    assert "; " in told


TEXTS = st.one_of(st.none(), st.text(max_size=120), st.from_regex(r"[A-Z\[\]/. _-]{1,90}"))


@given(
    style=st.sampled_from(["name", "id"]),
    prefix=st.sampled_from(["", "example.com"]),
    ids=st.tuples(st.text(max_size=12), st.text(max_size=80)),
    texts=st.tuples(TEXTS, TEXTS),
    kind=st.sampled_from([Kind.PCI, Kind.MDEV]),
)
def test_no_discovered_name_is_ever_refused(
    style: str,
    prefix: str,
    ids: tuple[str, str],
    texts: tuple[str | None, str | None],
    kind: Kind,
) -> None:
    assert naming.describe_fault(naming.discovered_name(style, prefix, *ids, *texts, kind)) is None


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["[" * 50_000, "[a/" * 50_000, "a" + "_" * 200_000 + "a", "-" * 200_000])
def test_a_text_of_any_length_is_named_in_no_time(text: str) -> None:
    assert naming.describe_fault(naming.discovered_name("name", "", "10de", "1eb8", text, text)) is None
    assert (
        naming.describe_fault(naming.discovered_name("name", "", "10de", text, text, text, Kind.MDEV)) is None
    )


def test_the_nearest_words_are_three_at_most_and_of_the_others_there_is_a_number() -> None:
    many = [f"nvidia.com/T{number}" for number in range(9)]
    assert naming.find_similar("NVIDIA.com/t", many) == ("nvidia.com/T8", "nvidia.com/T7", "nvidia.com/T6")
    near, known = naming.suggest("NVIDIA.com/t", many), naming.suggest("zzz", many)
    facts.names(near, "nvidia.com/T8", "nvidia.com/T7", "nvidia.com/T6", 9)
    facts.names(known, "nvidia.com/T0", "nvidia.com/T1", "nvidia.com/T2", 6)
    assert [text.count("nvidia.com/") for text in (near, known)] == [3, 3]
    facts.names(naming.suggest("setle", ["settle"]), "settle")


def test_a_word_that_only_begins_as_all_do_is_not_offered_beside_the_right_one() -> None:
    assert naming.find_similar("NODEAGENT_LOG_LEVL", ["NODEAGENT_LOG_FORMAT", "NODEAGENT_LOG_LEVEL"]) == (
        "NODEAGENT_LOG_LEVEL",
    )
