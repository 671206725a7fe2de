# SPDX-License-Identifier: Apache-2.0
"""The golden pages: name of the page to the function that renders it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from nodeagent.agent.cluster.inspection import Check
from nodeagent.check.findings import ReadinessLine, Verdict
from nodeagent.cli import bind, check, cluster, explain, explain_vmi, output, plan, plan_config, scan, status
from nodeagent.cli.plan_config import DryRun, SettingChange
from nodeagent.model.change import BootFile, BootFiles, FileFate, Outcome, Plan, Result
from nodeagent.model.host import Hints, MdevType, PciFunction
from nodeagent.model.ids import DeviceId, PciAddress, ResourceName
from nodeagent.model.nodes import CdiFile
from nodeagent.model.problem import Problem, ProblemCode, misconfigured, note, wrong
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec
from nodeagent.model.status import (
    ClusterStatus,
    ConfigurationStatus,
    DeviceStatus,
    HttpStatus,
    MdevsStatus,
    StaleStatus,
    Status,
    WaitingStatus,
)
from nodeagent.policy import diagnose
from nodeagent.policy.explain import devices
from nodeagent.policy.explain import resources as explaining
from nodeagent.policy.explain.machines import CRName
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.comparison import Comparison, Counted, DeviceChange, Listed, ResourceChange
from nodeagent.policy.offer.turn import Decision
from nodeagent.render import metrics
from tests.cli import (
    test_explain_cards,
    test_explain_pods,
    test_explain_rules,
    test_explain_vmi,
    test_plan_text,
)
from tests.policy.samples import GPU, UUID, function, holders, host, mdev, snapshot, vgpu
from tests.render.statuses import ONE, TWO, WELL

ADDRESS = PciAddress("0000:65:00.0")
NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}
BROKEN = Reason(ReasonCode.NODE_MISSING, "/dev/vfio/2 is missing", "load vfio-pci")


def path(name: str) -> Path:
    """The file of a page."""
    return Path(__file__).with_name(f"{name}.txt")


def _sections(**texts: str) -> str:
    """Several outputs of one command on one page, each below its title."""
    return "\n".join(f"==== {title.replace('_', ' ')}\n{text}\n" for title, text in texts.items())


def _status() -> str:
    (gpu,) = WELL.resources
    waiting = DeviceStatus(DeviceId("0000:67:00.0"), False, 0, "group-held", "in use by ns/vm")
    error = "config.yaml:2: weather: unknown key"
    no_iommu = wrong(ProblemCode.NO_IOMMU, "", "no IOMMU", "enable it")
    no_type = wrong(ProblemCode.CHANGE, "", "no card supports x", "change mdevs.types")
    unused = note(ProblemCode.IDLE_RULE, "the rule matches nothing", "change it", "a.b/gpu")
    found: Status = WELL._replace(
        kubelet=WELL.kubelet._replace(present=False, pod_resources="no answer in time"),
        resources=(
            gpu._replace(devices=(*gpu.devices, waiting), registered=False, error="the name is taken"),
        ),
        changes=WELL.changes._replace(
            waiting=(WaitingStatus("0000:3b:00.0", "remove mdev x", "in use by ns/vm"),),
        ),
        configuration=ConfigurationStatus(problem=misconfigured("", error, "valid keys: aliases")),
        http=HttpStatus("http://[::1]:9481/"),
        cluster=ClusterStatus(
            enabled=True,
            reachable=True,
            kubevirt="kubevirt/kubevirt",
            events_dropped=7,
            stale=(StaleStatus("a.b/old"), StaleStatus("a.b/known", "the kubelet still lists it")),
        ),
        pci_ids="2026-01-01",
        findings=(no_iommu, no_type, unused),
    )
    return _sections(
        with_problems=status.text(found.with_findings(diagnose.problems(found)), wide=True),
        healthy=status.text(WELL),
        without_resources=status.text(
            WELL._replace(resources=(), holders={}, cluster=ClusterStatus(enabled=True))
        ),
    )


def _functions() -> tuple[PciFunction, ...]:
    return (
        function("0000:65:00.0", 2),
        function("0000:66:00.0", 1),
        function("0000:66:00.1", 1, driver="e1000e", vendor="8086", device="10d3", pci_class="020000"),
        function("0000:02:00.0", None, driver=None, vendor=None, device=None, pci_class=None, numa_node=None),
        function("0000:03:00.0", None, vendor=None, driver=None, unreadable="no answer for 1 s"),
        vgpu(vgpu_type=None, vgpu_types=(("1147", "NVIDIA A40-1B"),)),
    )


def _scan() -> str:
    types = {"0000:65:00.0": (MdevType("nvidia-222", "GRID T4-1Q", 15), MdevType("nvidia-223"))}
    cdi = {
        "/etc/cdi/a.json": CdiFile("/etc/cdi/a.json", "nvidia.com/gpu"),
        "/etc/cdi/b.json": CdiFile("/etc/cdi/b.json", fault="line 1: no JSON"),
    }
    here = host(*_functions(), mdev(), mdev_parents=types, cdi=cdi)
    found = tuple(devices.rows(turn.decide_first(snapshot(here, names=NAMES))))
    told = (
        Problem(ProblemCode.NO_VFIO, "", "vfio-pci is missing", "modprobe vfio-pci", True),
        note(ProblemCode.IDLE_RULE, "the rule matches nothing", "change it", "a.b/gpu"),
    )
    return _sections(
        narrow="\n".join([scan.text(here, found[1:]), *output.problem_sections(told)]),
        wide=scan.text(here, found, wide=True),
        empty=scan.text(host(iommu=False, nodes=frozenset()), ()),
    )


def _device(*found: PciFunction, held: bool = False) -> str:
    held_by = holders(ADDRESS) if held else {}
    told = devices.explain(ADDRESS, turn.decide_first(snapshot(host(*found), names=NAMES, holders=held_by)))
    assert told is not None
    return explain.text(told)


def _mdev() -> str:
    told = devices.explain(UUID, turn.decide_first(snapshot(host(mdev()), Spec(), names=NAMES)))
    assert told is not None
    return explain.text(told)


def _resource(name: str, decision: Decision) -> str:
    told = explaining.explain(name, decision)
    assert told is not None
    return explain.resource_text(told._replace(registered=False, registration_error="the name is taken"))


def _explain() -> str:
    hints = Hints(reset_methods=("flr", "bus"), aer_fatal=2)
    blocker = function("0000:65:00.1", driver="snd_hda_intel", vendor="1022", pci_class="040300")
    here = host(
        function("0000:65:00.0"), function("0000:66:00.0", 2), function("0000:67:00.0", 3, driver=None)
    )
    several = Spec(
        Discovery(enabled=False),
        rules=(
            PciRule(GPU, (PciSelector(vendors=("10de",)),)),
            NodeRule("x/kvm", "/dev/kvm", 100),
            PciRule("x/none", (PciSelector(vendors=("8086",)),)),
        ),
    )
    decision = turn.decide_first(snapshot(here, several, holders=holders("0000:65:00.0")))
    unreadable = PciFunction(ADDRESS)._replace(unreadable="not readable: Input/output error")
    return _sections(
        healthy_device=_device(function(ADDRESS, enable=1, power_state="D0", hints=hints), held=True),
        unhealthy_device=_device(function(ADDRESS), blocker),
        device_without_driver=_device(function(ADDRESS, driver=None)),
        device_that_a_count_says_is_open=_device(function(ADDRESS, enable=1, idle=1)),
        unreadable_device=_device(unreadable),
        mdev=_mdev(),
        card=explain.card_text(test_explain_cards.CARD),
        group=explain.group_text(test_explain_pods.group(1)),
        pod=explain.pod_text(test_explain_pods.POD),
        resource=_resource(GPU, decision),
        shared_node=_resource("x/kvm", decision),
        resource_without_devices=_resource("x/none", decision),
        rule=explain.rule_text(test_explain_rules.FOUND),
    )


def _machine() -> str:
    return _sections(
        pending=explain_vmi.text(test_explain_vmi.TOLD._replace(cr=CRName("kubevirt/kv", "record"))),
        without_requests=explain_vmi.text(test_explain_vmi.NAMELESS),
        refused=explain_vmi.text(test_explain_vmi.BROKEN),
    )


def _plan() -> str:
    _, found = test_plan_text.changed()
    problems = Plan(problems=(wrong(ProblemCode.CHANGE, "", "no card supports x", "change mdevs.types"),))
    return _sections(
        cards=plan.text(found, True),
        excluded=plan.text(test_plan_text.excluded(), True),
        virtual_functions=plan.text(test_plan_text.VFS, False),
        problems=plan.text(problems, True),
    )


def _dry_run_text(differs: Comparison, *settings: SettingChange, managed: bool) -> str:
    document = plan.as_document(Plan(), managed)
    found = DryRun("new.yaml", settings, differs.resources, differs.devices, differs.pods, document)
    return plan_config.text(found, Plan())


def _dry_run() -> str:
    setting = SettingChange("http.listen", ":1", ":2", "")
    old, new = Listed(ResourceName("a.b/old"), None), Listed(ResourceName("a.b/new"), BROKEN)
    differs = Comparison(
        (
            ResourceChange(ResourceName("a.b/old"), Counted(2, 2), None),
            ResourceChange(ResourceName("a.b/new"), None, Counted(1, 0)),
            ResourceChange(ResourceName("a.b/same"), Counted(1, 1), Counted(3, 2)),
        ),
        (
            DeviceChange(ONE, old, new, "ns/vm"),
            DeviceChange(TWO, old, None, None),
            *(
                DeviceChange(DeviceId(f"mdev-{n}"), None, Listed(ResourceName("a.b/same"), None), None)
                for n in range(6)
            ),
        ),
    )
    return _sections(
        with_changes=_dry_run_text(differs, setting, managed=True),
        without_changes=_dry_run_text(Comparison((), ()), managed=False),
    )


def _check() -> str:
    lines = (
        ReadinessLine("kernel", "IOMMU", Verdict.OK, "intel-iommu"),
        ReadinessLine("kernel", "vfio-pci", Verdict.WRONG, "not loaded", "modprobe vfio-pci"),
        ReadinessLine("kernel", "vfio", Verdict.WRONG, "not loaded", "modprobe vfio-pci"),
        ReadinessLine("node", "huge pages", Verdict.NOTE, "none " * 15),
        ReadinessLine("node", "kubelet", Verdict.UNSEEN, "/var/lib/kubelet"),
    )
    return _sections(with_problems=check.text(lines), healthy=check.text(lines[:1]))


def _bind() -> str:
    refused = wrong(
        ProblemCode.NOT_BOUND, "0000:65:00.0", "0000:65:00.0: eth0, default route", "choose another"
    )
    functions = ("0000:65:00.0", "0000:65:00.1")
    results = (
        Result(functions, Outcome.DONE, "bind 0000:65:00.0, 0000:65:00.1 to vfio-pci"),
        Result(functions, Outcome.PLANNED, "bind 0000:65:00.0, 0000:65:00.1 to vfio-pci"),
        Result((*functions, *functions, *functions), Outcome.NOTHING, "on vfio-pci"),
        Result(functions, Outcome.REFUSED, "", (refused,)),
        Result(functions, Outcome.LATE, "unbind 0000:65:00.0 from nouveau"),
    )
    files = (
        BootFile("/etc/modprobe.d/x.conf", FileFate.WRITTEN, "options x y=1\n"),
        BootFile("/etc/udev/rules.d/x.rules", FileFate.REMOVED),
    )
    return _sections(
        results=bind.results_text(results, "see nodeagent status"),
        files=bind.files_text(BootFiles(files, "dracut --force"), dry_run=False),
        dry_run=bind.files_text(BootFiles(files), dry_run=True),
    )


def _cluster_check() -> str:
    checks = (
        Check("right", "list nodes", True),
        Check("right", "watch nodes", False, "Forbidden", 'add {verbs: ["watch"]}'),
        Check("right", "get virtualmachineinstances.kubevirt.io", False, "for explain vmi", required=False),
    )
    credentials = "the kubeconfig /etc/kubeconfig"
    return _sections(
        with_problems=cluster.text(cluster.summarize("system:node:a", credentials, checks)),
        healthy=cluster.text(cluster.summarize("", credentials, checks[:1])),
        off=cluster.not_followed("false"),
        without_credentials=cluster.not_followed("auto"),
    )


def _metrics() -> str:
    here = WELL.host._replace(mdev_states=(MdevsStatus("nvidia-222", "held", 7),))
    return re.sub(r'python="[^"]*"', 'python="VERSION"', metrics.text(WELL._replace(host=here)))


PAGES: Mapping[str, Callable[[], str]] = {
    "status": _status,
    "scan": _scan,
    "explain": _explain,
    "explain-vmi": _machine,
    "plan": _plan,
    "plan-config": _dry_run,
    "check": _check,
    "bind": _bind,
    "cluster-check": _cluster_check,
    "metrics": _metrics,
}
