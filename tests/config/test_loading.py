# SPDX-License-Identifier: Apache-2.0
"""Loading: who wins, where each value comes from, and what every mistake says. Real files below a root."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.base.timeouts import SCALE
from nodeagent.config import Cluster
from nodeagent.model.configuration import Alias, Configuration, Node
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec
from nodeagent.policy import merge
from tests.facts import each_names, names

UNSAID = Configuration(node=Node(platform.node().lower()))


class Etc:
    """A root with a configuration directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "etc/nodeagent"
        (self.home / "conf.d").mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        (self.home / name).write_text(text)

    def load(
        self, flags: dict[str, str] | None = None, environ: dict[str, str] | None = None
    ) -> config.Settings:
        return config.load(config.Sources(str(self.root), flags or {}, environ or {}))

    def spec(self) -> Spec:
        return merge.merge(self.load().configuration)

    def lines(self, text: str) -> list[str]:
        """The error lines that a file with this text gives, without the directory."""
        self.write("config.yaml", text)
        with pytest.raises(ConfigError) as caught:
            self.load()
        return caught.value.lines().replace(f"{self.home}/", "").splitlines()


@pytest.fixture
def etc(tmp_path: Path) -> Etc:
    return Etc(tmp_path)


def source(loaded: config.Settings, key: str) -> str:
    return next(value.source for value in loaded.values if value.key == key)


FULL = """\
apiVersion: nodeagent/v1
discovery: {enabled: true, naming: id, prefix: example.com, classes: ["0300", 1200]}
aliases: {nvidia.com/TU104GL_TESLA_T4: nvidia.com/t4}
resources:
  - name: example.com/gpu
    pci:
      - {vendors: ["10DE"], devices: [1f08], subsystems: ["10DE:12a2"], classes: ["0300"],
         drivers: [vfio-pci], addresses: [0000:86:00.*, 03:00.0], numaNodes: [0], iommuGroups: [12],
         vgpuTypes: []}
      - {vendors: [8086]}
    isolation: bundle
    iommufd: auto
    cdi: true
  - {name: devices.example.com/kvm, node: {path: /dev/kvm, count: 110, permissions: rwm}}
kubelet: {registration: classic, devicePluginDir: /var/lib/kubelet/device-plugins/}
node: {name: node2, labels: {kubernetes.io/hostname: node2, zone: ""}}
timing: {settle: 250ms, resync: 2m}
log: {format: json, level: debug}
"""


def test_no_file_at_all_gives_the_defaults(tmp_path: Path) -> None:
    loaded = config.load(config.Sources(str(tmp_path), {}, {}))
    assert loaded.configuration == UNSAID
    assert loaded.timing == config.Timing(settle=1.0, resync=60.0, holders=2.0)
    assert loaded.kubelet.device_plugin_dir == "/var/lib/kubelet/device-plugins"
    assert {value.source for value in loaded.values} == {"default"}
    assert loaded.warnings == ()


def test_what_is_written_to_the_cluster_is_set_and_a_condition_without_a_cluster_is_odd(etc: Etc) -> None:
    assert etc.load().cluster == Cluster()
    etc.write("config.yaml", "cluster: {events: false, condition: true, staleResources: remove}\n")
    loaded = etc.load()
    assert loaded.cluster == Cluster(events=False, condition=True, stale_resources="remove")
    assert loaded.warnings == ()
    first, second = etc.load({"kubevirt.enabled": "false"}).warnings
    names(first, "cluster.condition", "true")
    names(second, "cluster.staleResources", "remove")


def test_a_full_file_is_read_into_the_model(etc: Etc) -> None:
    etc.write("config.yaml", FULL)
    loaded = etc.load()
    first = PciSelector(
        vendors=("10de",),
        devices=("1f08",),
        subsystems=("10de:12a2",),
        classes=("0300",),
        drivers=("vfio-pci",),
        addresses=("0000:86:00.*", "0000:03:00.0"),
        numa_nodes=(0,),
        iommu_groups=(12,),
    )
    second = PciSelector(vendors=("8086",))
    gpu = PciRule("example.com/gpu", (first, second), Isolation.BUNDLE, Iommufd.AUTO, True)
    kvm = NodeRule("devices.example.com/kvm", "/dev/kvm", 110, "rwm")
    found = loaded.configuration
    assert found.rules == (gpu, kvm)
    assert [rule.place for rule in found.rules] == [f"{etc.home}/config.yaml:{line}" for line in (5, 14)]
    assert [rule.place for rule in etc.spec().rules] == ["config.yaml:5", "config.yaml:14"]
    place = f"{etc.home}/config.yaml:3"
    assert found.aliases == (Alias("nvidia.com/TU104GL_TESLA_T4", "nvidia.com/t4", place),)
    assert found.discovery == Discovery(True, "id", "example.com", classes=("0300", "1200"))
    assert found.node.labels == (("kubernetes.io/hostname", "node2"), ("zone", ""))
    assert (loaded.timing.settle, loaded.timing.resync) == (0.25, 120.0)
    assert loaded.kubelet.device_plugin_dir == "/var/lib/kubelet/device-plugins"
    assert config.check_file(str(etc.home / "config.yaml")) == loaded


def test_the_strongest_source_wins_and_is_named(etc: Etc) -> None:
    etc.write("config.yaml", "timing: {settle: 1s}\n\nlog: {level: error}\nnode: {name: file}\n")
    etc.write("conf.d/10-a.yaml", "timing:\n  settle: 2s\nnode: {name: a}\ndiscovery: {naming: id}\n")
    etc.write("conf.d/20-b.yaml", "timing: {settle: 3s}\nnode: {name: b}\n")
    loaded = etc.load({"node.name": "flag"}, {"NODEAGENT_NODE_NAME": "env", "NODEAGENT_TIMING_SETTLE": "4s"})
    assert (loaded.configuration.node.name, source(loaded, "node.name")) == ("flag", "flag --node-name")
    assert (loaded.timing.settle, source(loaded, "timing.settle")) == (4.0, "env NODEAGENT_TIMING_SETTLE")
    assert (loaded.log.level, source(loaded, "log.level")) == ("error", "config.yaml:3")
    assert source(loaded, "discovery.naming") == "conf.d/10-a.yaml:4"
    assert (etc.load().timing.settle, source(etc.load(), "timing.settle")) == (3.0, "conf.d/20-b.yaml:1")


def test_lists_are_replaced_and_maps_are_merged(etc: Etc) -> None:
    etc.write("config.yaml", "discovery: {classes: ['03', '12']}\naliases: {a.b/1: a.b/x, a.b/2: a.b/y}\n")
    etc.write("conf.d/a.yaml", "discovery: {classes: ['0680']}\naliases: {a.b/2: a.b/z}\n")
    loaded = etc.load(environ={"NODEAGENT_ALIASES": "a.b/3=a.b/w"})
    assert loaded.configuration.discovery.classes == ("0680",)
    assert loaded.configuration.aliases == (
        Alias("a.b/1", "a.b/x", f"{etc.home}/config.yaml:2"),
        Alias("a.b/2", "a.b/z", f"{etc.home}/conf.d/a.yaml:2"),
        Alias("a.b/3", "a.b/w", "env NODEAGENT_ALIASES"),
    )
    assert source(loaded, "aliases") == "config.yaml:2, conf.d/a.yaml:2, env NODEAGENT_ALIASES"


def test_an_empty_variable_counts_as_not_set_and_an_empty_flag_as_given(etc: Etc) -> None:
    etc.write("config.yaml", "discovery: {prefix: example.com}\n")
    variable, flag = etc.load(environ={"NODEAGENT_DISCOVERY_PREFIX": ""}), etc.load({"discovery.prefix": ""})
    assert variable.configuration.discovery.prefix == "example.com"
    assert flag.configuration.discovery.prefix == ""


def test_foreign_variables_are_never_settings_and_misspelt_ones_are_told(etc: Etc) -> None:
    environ = {
        "LISTEN": "x",
        "DOMAIN": "y",
        "NODEAGENT_PORT": "tcp://1",
        "NODEAGENT_SERVICE_HOST": "z",
        SCALE: "0.3",
    }
    assert etc.load(environ=environ) == config.load(config.Sources(str(etc.root), {}, {}))
    (warning,) = etc.load(environ={"NODEAGENT_TIMING_SETLE": "1s"}).warnings
    names(warning, "NODEAGENT_TIMING_SETLE", "NODEAGENT_TIMING_SETTLE")


def test_dotfiles_are_passed_over_and_other_endings_are_told(etc: Etc) -> None:
    etc.write("conf.d/.x.yaml", "nonsense")
    etc.write("conf.d/x.yml", "nonsense")
    etc.write("conf.d/README", "nonsense")
    (warning,) = etc.load().warnings
    assert "conf.d/x.yml" in warning


def test_a_rule_without_selectors_takes_nothing_and_says_so(etc: Etc) -> None:
    etc.write("config.yaml", "resources:\n- {name: a.b/c}\n- {name: a.b/d, pci: []}\n")
    loaded = etc.load()
    assert [rule.name for rule in loaded.configuration.rules] == ["a.b/c", "a.b/d"]
    each_names(loaded.warnings, ("a.b/c", "selector"), ("a.b/d", "selector"))


MISTAKES = [
    ("resourcez: []", "config.yaml:1: resourcez:", '"resources"'),
    ("\ntiming: {setle: 1s}", "config.yaml:2: timing.setle:", '"settle"'),
    (
        "resources:\n- name: a.b/c\n  pci:\n  - vendor: [10de]",
        "config.yaml:4: resources[0].pci[0].vendor:",
        '"vendors"',
    ),
    ("x1: x", "config.yaml:1: x1:", "apiVersion"),
    ("apiVersion: v2", "config.yaml:1: apiVersion:", "nodeagent/v1"),
    ("discovery: {enabled: yes}", "discovery.enabled:", "true or false"),
    ("discovery: {enabled: 'true'}", "discovery.enabled:", "without quotes"),
    ("discovery: {naming: nvidia}", "discovery.naming:", "name"),
    ("discovery: {prefix: Example.com}", "discovery.prefix:", "example.com"),
    ("discovery: {classes: 0300}", "discovery.classes:", "[a, b]"),
    ("discovery: {classes: ['03000']}", "discovery.classes[0]:", '"0300"'),
    ("discovery: []", "discovery:", "enabled"),
    ("timing: {settle: 1}", "timing.settle:", "250ms"),
    ("timing: {settle:}", "timing.settle: has no value", "write a value"),
    ("timing: {settle: [1s]}", "timing.settle: expected a duration", "single"),
    ("timing: {resync: 0s}", "timing.resync:", "from 1s"),
    ("aliases: {a.b/c: d}", "aliases.a.b/c:", "<domain>/<name>"),
    ("aliases: [a]", "aliases:", "key: value"),
    ("aliases: {a.b/1: a.b/2, a.b/2: a.b/1}", 'config.yaml:1: the alias "a.b/1"', "end"),
    ("resources: {name: a.b/c}", "resources:", "'- a'"),
    ("resources: [a.b/c]", "resources[0]:", "key: value"),
    ("resources: [{pci: []}]", "resources[0].name:", "write it"),
    ("resources: [{name: GRID_T4-1Q, mdev: [{types: [x]}]}]", "resources[0].name:", "<domain>"),
    ("resources: [{name: 'GeForce RTX'}]", "resources[0].name:", "<domain>"),
    ("resources: [{name: a.b/c, pci: [{}]}]", "resources[0].pci[0]:", '["*"]'),
    ("resources: [{name: a.b/c, pci: [{vendors: []}]}]", "resources[0].pci[0]:", '["*"]'),
    ("resources: [{name: a.b/c, mdev: [{types: []}]}]", "resources[0].mdev[0]:", "types"),
    ("resources: [{name: a.b/c, pci: [{vendors: [0x10de]}]}]", "pci[0].vendors[0]:", '"10de"'),
    ("resources: [{name: a.b/c, pci: [{vendors: [nvidia]}]}]", "pci[0].vendors[0]:", '"10de"'),
    ("resources: [{name: a.b/c, pci: [{devices: ['1eb']}]}]", "pci[0].devices[0]:", '"1eb8"'),
    ("resources: [{name: a.b/c, pci: [{subsystems: ['10de:']}]}]", "subsystems[0]:", "10de:12a2"),
    ("resources: [{name: a.b/c, pci: [{drivers: ['a/b']}]}]", "drivers[0]:", "vfio-pci"),
    ("resources: [{name: a.b/c, pci: [{addresses: ['86:00.*']}]}]", "addresses[0]:", "domain in front"),
    ("resources: [{name: a.b/c, pci: [{addresses: ['0000:86:00.8']}]}]", "0000:86:00.8", "0000:86:00.0"),
    ("resources: [{name: a.b/c, pci: [{numaNodes: [-1]}]}]", "numaNodes[0]: -1", "from 0"),
    ("resources: [{name: a.b/c, pci: [{iommuGroups: ['12']}]}]", "iommuGroups[0]:", "without quotes"),
    ("resources: [{name: a.b/c, pci: [{acpiIndexes: [1]}]}]", "acpiIndexes:", "migrating.md"),
    (
        "resources: [{name: a.b/c, pci: [{vendors: [10de]}], node: {path: /dev/kvm}}]",
        "pci and node",
        "two resources",
    ),
    ("resources: [{name: a.b/c, node: {path: /dev/kvm}, cdi: true}]", "cdi", "remove"),
    ("resources: [{name: a.b/c, node: {path: kvm}}]", "node.path:", "/dev/kvm"),
    ("resources: [{name: a.b/c, node: {path: /dev/../etc/x}}]", "node.path:", "/dev/kvm"),
    ("resources: [{name: a.b/c, node: {path: /dev}}]", "node.path:", "/dev/kvm"),
    ("resources: [{name: a.b/c, node: {path: /dev/kvm, count: 0}}]", "node.count: 0", "from 1"),
    ("resources: [{name: a.b/c, node: {path: /dev/kvm, count: 900000}}]", '"a.b/c": 900000', "at most"),
    ("resources: [{name: a.b/c, node: {path: /dev/kvm, permissions: rx}}]", "permissions:", "rw"),
    (
        "resources:\n- {name: a.b/c}\n- {name: a.b/c, cdi: true}",
        'config.yaml:3: "a.b/c"',
        "kind and options",
    ),
    ("resources: [{name: a.b/c}, {name: a.b/C}]", "PCI_RESOURCE_A_B_C", "differ"),
    ("kubelet: {devicePluginDir: plugins}", "kubelet.devicePluginDir:", "'/'"),
    ("kubelet: {podResources: /a/../b}", "kubelet.podResources:", "'..'"),
    (f"status: {{socket: /{'x' * 107}}}", "108 bytes", "107"),
    ("node: {name: 'My Node'}", "node.name:", "kubectl"),
    ("node: {labels: {a: 'b c'}}", "node.labels.a:", "63"),
    ("log: {level: verbose}", "log.level:", "info"),
    ("mdevs: {types: [{type: x, count: 0}]}", "mdevs.types[0].count: 0", "from 1"),
    ("mdevs: {types: ['']}", "mdevs.types[0]:", "entry"),
    ("mdevs: {types: [{type: x, count: 1٢}]}", 'count: "1٢"', "digits"),
    ("timing: {settle: 1٢s}", "timing.settle:", "250ms"),
    ('mdevs: {types: ["GRID\u00a0T4-1B"]}', "types[0]: 'GRID\\xa0T4-1B'", "a blank"),
    ('mdevs: {types: ["GRID T4-1B\\n"]}', "types[0]: 'GRID T4-1B\\n'", "a blank"),
    ('mdevs: {exclude: ["\u00a0"]}', "mdevs.exclude[0]:", "entry"),
    ('"": {resources: []}', 'config.yaml:1: "":', "apiVersion"),
    ("mdevs: {types: [{count: 4}]}", "mdevs.types[0].type:", "write it"),
    ("mdevs: {nodes: [{nodeSelector: {a: b}, type: [x]}]}", "mdevs.nodes[0].type:", "types"),
    ("mdevs: {vgpuConfigFile: vgpu.yaml}", "mdevs.vgpuConfigFile:", "'/'"),
    ("passthrough: [{driver: vfio-pci}]", "passthrough[0].match:", "write it"),
    ("passthrough: [{match: [], driver: nvidia}]", 'passthrough[0].driver: "nvidia"', "mlx5_vfio_pci"),
    ("passthrough: [{match: [], group: part}]", 'passthrough[0].group: "part"', "matched"),
    ('passthrough: [{match: [], force: ["0000:3b:*"]}]', 'passthrough[0].force[0]: "0000:3b:*"', "in full"),
    ("kubevirt: {serve: internal}", 'kubevirt.serve: "internal"', "external"),
]


@pytest.mark.parametrize(("text", "what", "hint"), MISTAKES, ids=[text for text, _, _ in MISTAKES])
def test_a_mistake_gives_two_lines_with_place_and_hint(etc: Etc, text: str, what: str, hint: str) -> None:
    lines = etc.lines(text)
    assert lines[0].startswith("config.yaml:")
    assert what in lines[0]
    assert hint in lines[1]


CONTRADICTION = ("mdevs.exclude", "nvidia-1")


def test_what_contradicts_itself_over_several_sources_is_told_with_its_place(etc: Etc) -> None:
    etc.write("conf.d/a.yaml", "mdevs: {types: [nvidia-1]}\n")
    lines = etc.lines("\nmdevs: {exclude: [nvidia-1]}")
    names(lines[0], "config.yaml:2", *CONTRADICTION)
    etc.write("config.yaml", "")
    with pytest.raises(ConfigError) as caught:
        etc.load(environ={"NODEAGENT_MDEVS_EXCLUDE": "nvidia-1"})
    names(caught.value.what, "NODEAGENT_MDEVS_EXCLUDE", *CONTRADICTION)
    with pytest.raises(ConfigError) as caught:
        etc.load({"mdevs.exclude": "nvidia-1"})
    names(caught.value.what, "--mdevs-exclude", *CONTRADICTION)


def test_a_key_that_a_flag_or_a_variable_names_twice_is_refused_as_in_files(etc: Etc) -> None:
    with pytest.raises(ConfigError) as caught:
        etc.load({"node.labels": "a=1, b=2, a=2"})
    names(caught.value.what, "--node-labels", "node.labels", '"a"')
    with pytest.raises(ConfigError) as caught:
        etc.load(environ={"NODEAGENT_ALIASES": "a.b/c=a.b/d,a.b/c=a.b/d"})
    names(caught.value.what, "NODEAGENT_ALIASES", "aliases", '"a.b/c"')


def test_all_mistakes_of_all_sources_are_told_at_once(etc: Etc) -> None:
    etc.write("conf.d/a.yaml", "a: 1\nb: 2\na: 3\n")
    etc.write("config.yaml", "log: {level: loud}\ntiming: {settle: soon}\n")
    with pytest.raises(config.ConfigErrors) as caught:
        etc.load({"log.format": "xml", "nonsense": "1"}, {"NODEAGENT_ALIASES": "a"})
    assert len(caught.value.errors) == 6
    assert len(caught.value.lines().splitlines()) == 12
    assert caught.value.what == caught.value.errors[0].what


def test_a_mistake_counts_even_where_a_stronger_source_hides_it(etc: Etc) -> None:
    etc.write("config.yaml", "timing: {settle: soon}\n")
    with pytest.raises(ConfigError, match="soon"):
        etc.load({"timing.settle": "1s"})


def test_parts_that_are_named_but_not_used_are_fine(etc: Etc) -> None:
    etc.write("config.yaml", "mdevs:\npassthrough: []\nsriov:\nkubevirt: {enabled: auto, serve: external}\n")
    assert etc.load().configuration == UNSAID


def test_the_longest_plugin_directory_leaves_room_for_a_socket(etc: Etc) -> None:
    longest = "/" + "x" * 63
    name = f"nodeagent-{'a' * 10}-{4194304}-{'b' * 8}.sock"
    assert len(f"{longest}/{name}") == 107
    assert etc.load({"kubelet.devicePluginDir": longest}).kubelet.device_plugin_dir == longest
    with pytest.raises(ConfigError, match="the limit is 64"):
        etc.load({"kubelet.devicePluginDir": f"{longest}x"})


def test_the_watched_directories_include_those_that_links_lead_to(etc: Etc) -> None:
    volume = etc.root / "volume"
    volume.mkdir()
    (volume / "settings").write_text("timing: {settle: 5s}\n")
    (etc.home / "config.yaml").symlink_to(volume / "settings")
    assert etc.load().watched == (str(etc.home), str(etc.home / "conf.d"), str(volume))
    assert etc.load().timing.settle == 5.0


def test_loading_again_sees_the_new_file_and_keeps_nothing_of_the_old(etc: Etc) -> None:
    etc.write("config.yaml", "aliases: {a.b/1: a.b/2}\n")
    assert [alias.target for alias in etc.load().configuration.aliases] == ["a.b/2"]
    etc.write("config.yaml", "")
    assert etc.load() == config.load(config.Sources("/nonexistent", {}, {}))


def test_the_name_of_the_node_is_its_hostname_unless_a_label_says_otherwise(etc: Etc) -> None:
    etc.write("config.yaml", "node: {name: node2, labels: {zone: a}}\n")
    assert dict(etc.spec().labels) == {"kubernetes.io/hostname": "node2", "zone": "a"}
    etc.write("config.yaml", "node: {name: node2, labels: {kubernetes.io/hostname: other}}\n")
    assert dict(etc.spec().labels) == {"kubernetes.io/hostname": "other"}


@pytest.mark.parametrize("sign", ["#", "# ?"])
def test_the_example_in_the_packaged_file_can_be_uncommented_with_and_without_its_blanks(
    sign: str, tmp_path: Path
) -> None:
    packaged = (Path(__file__).parents[2] / "packaging" / "config.yaml").read_text()
    head, example = packaged.split("#resources:\n")
    file = tmp_path / "config.yaml"
    file.write_text(head + re.sub(f"^{sign}", "", f"#resources:\n{example}", flags=re.MULTILINE))
    (rule,) = config.check_file(str(file)).configuration.rules
    assert rule.name == "example.com/gpu"


def test_the_values_that_a_daemon_shows_make_its_settings_again(tmp_path: Path) -> None:
    etc = Etc(tmp_path)
    etc.write(
        "config.yaml",
        """
apiVersion: nodeagent/v1
discovery: {naming: id, classes: ["0300"]}
aliases: {nvidia.com/T4: example.com/t4}
resources:
  - {name: example.com/gpu, pci: [{vendors: ["10de"], addresses: ["0000:86:00.*"], numaNodes: [0]}]}
  - {name: example.com/kvm, node: {path: /dev/kvm, count: 3}}
mdevs: {manage: true, types: [nvidia-222, {type: GRID T4-1Q, count: 2}]}
kubevirt: {enabled: true}
cluster: {staleResources: remove}
node: {labels: {a: "true"}}
timing: {settle: 300ms}
""",
    )
    before = etc.load({"kubeconfig": "/etc/kubeconfig"})
    after = config.from_values(before.values, {})
    assert [each._replace(source="") for each in after.values] == [
        each._replace(source="") for each in before.values
    ]
    assert (after.timing, after.cluster) == (before.timing, before.cluster)
    assert after.configuration.mdevs == before.configuration.mdevs
    assert [each.name for each in after.configuration.rules] == ["example.com/gpu", "example.com/kvm"]
    assert (
        config.from_values(before.values, {"kubevirt.enabled": "false"}).configuration.kubevirt.enabled
        == "false"
    )
