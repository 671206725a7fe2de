// SPDX-License-Identifier: Apache-2.0
// Renders the document of `nodeagent status -o json` as it comes; texts are set as text, never as markup.
"use strict";

const WAITS = new Set(["group-held", "going-away"]);
const STATES = [["all", "All"], ["bad", "Unhealthy"], ["wait", "Waiting"], ["held", "In use"], ["good", "Free"],
  ["none", "Not offered"]];
const LABELS = { bad: "Unhealthy", wait: "Waiting", held: "In use", good: "Free", none: "Not offered" };
const ORDER = { bad: 0, wait: 1, held: 2, good: 2, none: 3 };

const $ = (id) => document.getElementById(id);
let told = null, shownState = "all";

function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const badge = (kind, text) => el("span", `badge ${kind}`, text);
const code = (text) => el("code", "", text);

function pairs(id, entries) {
  $(id).replaceChildren(...entries.filter(Boolean).map(([name, ...value]) =>
    el("div", "", el("dt", "", name), el("dd", "", ...value))));
}

function table(head, rows) {
  const cell = (tag, [text, kind]) => {
    const made = el(tag, kind || "", ...(Array.isArray(text) ? text : [text]));
    if (tag === "th") made.scope = kind === "row" ? "row" : "col";
    return made;
  };
  return el("table", "",
    el("thead", "", el("tr", "", ...head.map((each) => cell("th", Array.isArray(each) ? each : [each])))),
    el("tbody", "", ...rows.map(([first, ...rest]) =>
      el("tr", "", cell("th", [first, "row"]), ...rest.map((each) => cell("td", Array.isArray(each) ? each : [each]))))));
}

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const since = (seconds) => duration(Math.max(0, Date.now() / 1000 - seconds));
const clock = (date) => date.toLocaleTimeString();

// What is offered: id of a Device → all of it, with its resource and who holds it.
function devicesOf(status) {
  const devices = new Map();
  for (const resource of status.resources) {
    for (const device of resource.devices) {
      const holder = status.holders[device.id];
      devices.set(device.id, { ...device, resource: resource.name, holder: holder && holder.pod });
    }
  }
  return devices;
}

function stateOf(device) {
  if (!device) return "none";
  if (!device.healthy) return WAITS.has(device.reason) ? "wait" : "bad";
  return device.holder ? "held" : "good";
}

// The blocks of the list: an IOMMU group each, but all parts of one card together.
function blocksOf(status, devices) {
  const blocks = new Map(), seen = new Set();
  const block = (key, title, group) => {
    if (!blocks.has(key)) blocks.set(key, { title, viable: true, blocking: [], rows: [] });
    const found = blocks.get(key);
    if (group && !group.viable) {
      found.viable = false;
      found.blocking = group.members.filter((member) => member.role === "blocks");
    }
    return found;
  };
  for (const group of status.groups || []) {
    const number = group.number === null ? "no IOMMU group" : `IOMMU group ${group.number}`;
    for (const member of group.members) {
      const device = devices.get(member.device);
      if (device) seen.add(device.id);
      const key = member.parent ? `card ${member.parent}` : number + (group.number === null ? member.id : "");
      const title = member.parent ? `Card ${member.parent}` : number;
      block(key, title, group).rows.push({ member, device, state: stateOf(device), number });
    }
  }
  for (const device of devices.values()) {
    if (seen.has(device.id)) continue;
    const state = stateOf(device), rows = block(`resource ${device.resource}`, device.resource).rows;
    const alike = rows.find((row) => row.state === state && row.shares && row.device.message === device.message);
    if (alike && !device.holder) alike.shares += 1;
    else rows.push({ member: { id: device.id, role: "share" }, device, state, number: "", shares: device.holder ? 0 : 1 });
  }
  return [...blocks.values()];
}

function textOf(block, row) {
  const device = row.device || {};
  return [block.title, row.number, row.member.id, row.member.description, row.member.driver, row.member.message, device.id,
    device.resource, device.holder, device.reason, device.message, device.hint]
    .filter(Boolean).join(" ").toLowerCase();
}

const MEANS = {
  blocks: "its host driver blocks the whole group",
  splits: "split by its driver: its vGPUs are assigned, not the card",
  vacant: "its driver supports vGPU types, but no vGPU type is set",
};

// Why a part of a card is not offered matters where nothing of its group is, or where that is asked for.
function rowOf(row, whyNot) {
  const { member, device, state } = row;
  const name = row.shares > 1 ? `${row.shares} shares such as ${member.id}` : member.id;
  const message = device ? device.message : MEANS[member.role] || (whyNot && member.message);
  const wide = member.id.length > 20 ? " uuid" : "";
  return el("div", `device${wide}${state === "none" ? " aside" : ""}`,
    el("span", "id", name),
    el("span", "name", member.description || "", member.driver ? el("span", "soft", `  ${member.driver}`) : null),
    el("span", "who", device ? device.resource : "", device && device.holder ? el("div", "", `in use by ${device.holder}`) : null),
    member.role === "blocks" && !device ? badge("bad", "Blocks") : badge(state, LABELS[state]),
    message ? el("div", "why", el("span", state === "bad" ? "" : "soft", message),
      device && device.hint ? el("div", "hint", device.hint) : null) : null);
}

function showDevices(status, devices) {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const blocks = blocksOf(status, devices), counts = { all: 0 };
  let visible = 0;
  const made = [];
  const rank = (block) => Math.min(...block.rows.map((row) => ORDER[row.state]));
  for (const block of blocks.sort((one, other) => rank(one) - rank(other))) {
    const matching = block.rows.filter((row) => {
      const text = textOf(block, row);
      return words.every((word) => text.includes(word));
    });
    for (const row of matching) {
      counts.all += 1;
      counts[row.state] = (counts[row.state] || 0) + 1;
    }
    const rows = matching.filter((row) => shownState === "all" || row.state === shownState);
    if (!rows.length) continue;
    visible += rows.length;
    const bad = block.rows.some((row) => row.state === "bad");
    const blocking = block.blocking.map((member) => `${member.id} (${member.driver})`).join(", ");
    const head = el("header", "", el("h3", "", block.title),
      block.viable ? null : blocking ? badge("bad", `not viable: ${blocking} has a host driver`)
        : badge("none", "not for VFIO: split into vGPUs by its driver"));
    made.push(el("article", `group${bad ? " trouble" : ""}`, head,
      ...rows.map((row) => rowOf(row, shownState === "none" || !block.rows.some((each) => each.device)))));
  }
  $("groups").replaceChildren(...made);
  $("shown").textContent = visible === counts.all && !words.length ? "" : `${visible} shown`;
  for (const label of $("states").children) {
    label.lastChild.textContent = ` ${counts[label.dataset.state] || 0}`;
  }
}

function showTrouble(status, devices) {
  const findings = status.findings || [], bySubject = new Map();
  for (const device of devices.values()) bySubject.set(`${device.resource}/${device.id}`, device);
  const problems = findings.filter((each) => each.actionRequired), listed = new Set(problems.map((each) => each.subject));
  let waiting = 0;
  for (const [subject, device] of bySubject) {
    if (!device.healthy && WAITS.has(device.reason) && !listed.has(subject)) waiting += 1;
  }
  const urgent = problems.map((problem) => {
    const device = bySubject.get(problem.subject);
    return el("div", "problem", el("strong", "", problem.message), problem.hint ? el("div", "hint", problem.hint) : null,
      device && device.resource && /^[0-9a-f-]+[:-]/.test(device.id)
        ? el("div", "soft", "more: ", code(`nodeagent explain ${device.id}`)) : null);
  });
  const rest = waiting ? el("p", "soft", `${waiting} ${waiting === 1 ? "device waits" : "devices wait"} for a pod to end: see Waiting below.`) : null;
  $("trouble").replaceChildren(...(urgent.length ? urgent : [el("p", "banner good", "✓ No problems.")]), ...(rest ? [rest] : []),
    ...findings.filter((each) => !each.actionRequired).map((each) => el("p", "soft", `Note: ${each.message}`)));
  $("trouble-title").textContent = urgent.length ? `Problems (${urgent.length})` : "Problems";
  document.title = urgent.length ? `(${urgent.length}) nodeagent` : "nodeagent";
}

function showFacts(status, devices) {
  const all = [...devices.values()], count = (state) => all.filter((each) => stateOf(each) === state).length;
  const kubelet = status.kubelet, configuration = status.configuration || {};
  pairs("facts", [
    ["Devices", `${all.length} offered: `, ...["good", "held", "bad", "wait"].flatMap((state) =>
      [badge(count(state) ? state : "none", `${count(state)} ${LABELS[state].toLowerCase()}`), " "])],
    ["Kubelet", kubelet.present ? badge("good", "present") : badge("bad", "unreachable"), ` ${kubelet.socket}`],
    ["Allocations", kubelet.podResources === "answers"
      ? badge(kubelet.holdersKnown ? "good" : "wait", kubelet.holdersKnown ? "known" : "not all are known yet")
      : badge("bad", "no answer"), kubelet.podResources === "answers" ? "" : ` ${kubelet.podResources}`],
    ["IOMMU", badge(status.host.iommu ? "good" : "bad", status.host.iommu ? "active" : "not active: no PCI device can be assigned"),
      ` ${status.host.functions} functions, ${status.host.groups} groups, ${status.host.mdevs} mdevs`],
    ["Settings", configuration.problem ? badge("bad", "the newest are invalid") : badge("good", "in force"),
      configuration.since ? ` for ${since(configuration.since)}` : "",
      configuration.problem ? el("div", "", `${configuration.problem.message}\n${configuration.problem.hint}`) : null],
  ]);
}

function showResources(status) {
  const rows = status.resources.map((resource) => {
    const devices = new Set(resource.devices.map((device) => device.id));
    const held = Object.entries(status.holders).filter(([id, holder]) => devices.has(id) && holder.resource === resource.name).length;
    const meter = el("meter");
    Object.assign(meter, { min: 0, max: Math.max(devices.size, 1), value: resource.healthy });
    meter.setAttribute("aria-label", `healthy devices of ${resource.name}`);
    const given = resource.allocations || {};
    const known = resource.registered ? (resource.watched ? badge("good", "registered") : badge("wait", "list not watched yet"))
      : badge(status.kubelet.present ? "bad" : "none", "not registered");
    return [resource.name, [[meter, `${resource.healthy} of ${devices.size}`]], [`${held}`, "number"],
      [[known, resource.error ? el("div", "soft", resource.error) : ""]],
      [`${given.granted || 0}`, "number"], [`${(given.refused || 0) + (given.failed || 0)}`, "number"]];
  });
  $("resources").replaceChildren(rows.length
    ? table(["Resource", "Healthy", ["In use", "number"], "Kubelet", ["Allocated so far", "number"], ["Refused", "number"]], rows)
    : el("p", "soft", "No resource is offered."));
}

function showPlan(status) {
  const changes = status.changes, list = (title, kind, texts) => texts.length
    ? [el("h3", "", title), el("ul", "", ...texts.map((text) => el("li", kind, ...text)))] : [];
  const parts = [
    ...(changes.cards.length ? [el("div", "scroll", table(["Card", "Type", ["Instances", "number"], "Notes"],
      changes.cards.map((card) => [card.card, card.types.join(", ") || "none", [`${card.instances}`, "number"], card.notes.join("; ")])))] : []),
    ...list("Refused by the kernel, tried again", "", changes.failing.map((each) =>
      [`${each.card}: ${each.action}: ${each.message}`, el("div", "hint", `${each.hint || "it is tried again"}; ${each.tries} tries, next in ${duration(each.nextTrySeconds)}`)])),
    ...list("No answer from the kernel", "", (changes.stuck || []).map((text) => [text])),
    ...list("Waiting", "", changes.waiting.map((each) => [`${each.card}: ${each.action}`, el("div", "soft", each.message)])),
    ...list("In progress", "", changes.inProgress.map((text) => [text])),
  ];
  $("plan-section").hidden = parts.length === 0;
  $("plan").replaceChildren(...parts);
}

function showMore(status) {
  const { events } = status.host, process = status.process || {};
  pairs("more", [
    ["Version", `${status.version}, process ${status.pid}`],
    ["Running for", process.started ? since(process.started) : duration(status.uptimeSeconds)],
    ["Memory", `${((process.residentBytes || 0) / 1048576).toFixed(1)} MiB`],
    ["Events", `${events.events} by ${events.source}, lost ${events.lost} times`],
    ["Configuration", `${(status.configuration || {}).generation || 1} loaded since the start, ${(status.configuration || {}).refused || 0} refused`],
    Object.keys(status.subsystems).length ? ["Subsystems that failed", Object.entries(status.subsystems).map(([name, text]) => `${name}: ${text}`).join("; ")] : null,
    status.host.notReadable.length ? ["Unreadable", status.host.notReadable.join(", ")] : null,
    ["Metrics", Object.assign(el("a", "", "/metrics"), { href: "/metrics" })],
  ]);
}

function show() {
  if (!told) return;
  const devices = devicesOf(told);
  $("about").textContent = `version ${told.version}${told.root === "/" ? "" : `, host below ${told.root}`}`;
  showTrouble(told, devices);
  showFacts(told, devices);
  showResources(told);
  showPlan(told);
  showDevices(told, devices);
  showMore(told);
  $("main").hidden = false;
}

function live(kind, text) {
  const sign = $("live");
  if (sign.textContent !== text) { sign.className = `badge ${kind}`; sign.textContent = text; }
  document.body.classList.toggle("stale", kind === "bad" && told !== null);
}

function listen() {
  const source = new EventSource("/events");
  let at = "";
  source.onopen = () => live("good", "live");
  source.onmessage = (event) => {
    told = JSON.parse(event.data);
    at = clock(new Date());
    live("good", "live");
    show();
  };
  source.onerror = () => {
    live("bad", at ? `connection lost; this is of ${at}` : "no connection");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}

function begin() {
  for (const [state, text] of STATES) {
    const input = Object.assign(el("input"), { type: "radio", name: "state", value: state, checked: state === "all" });
    input.addEventListener("change", () => { shownState = state; show(); });
    const label = el("label", "", input, text, el("span", "", ""));
    label.dataset.state = state;
    $("states").append(label);
  }
  $("search").addEventListener("input", show);
  $("filter").addEventListener("submit", (event) => event.preventDefault());
  $("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== $("search")) { event.preventDefault(); $("search").focus(); }
  });
  setInterval(() => { if (told) { showFacts(told, devicesOf(told)); showMore(told); } }, 30000);
  listen();
}

begin();
