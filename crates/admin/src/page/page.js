"use strict";
// Draws /status, once a second. Whatever comes from it is text to this page: it is set as textContent, never as markup,
// since messages, names and addresses may come from a peer.

const SECONDS = 600; // of the plots
const POINTS = 120; // of a plot's line
const SHOWN = 500; // items of a list at most; the filter reaches the others
const byId = (id) => document.getElementById(id);
const PLACES = {
  application_sidecar: "hop: application → sidecar", sidecar: "process: sidecar",
  sidecar_relay: "hop: sidecar → relay", relay: "process: relay", relay_agent: "hop: relay → agent",
  agent: "process: agent", agent_server: "hop: agent → server",
};
const GOOD = ["up", "ready"];
const BAD = ["down", "failed", "degraded", "lost", "frozen", "unauthorized", "absent"];
const tone = (state) => GOOD.includes(state) ? "good" : BAD.includes(state) ? "bad" : state === "unknown" ? "unknown" : "doubtful";

// ---- elements -------------------------------------------------------------------------------------------------------

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}
// Only what differs is touched: an idle page costs nothing, and a screen reader hears nothing.
function say(element, text) { if (element.textContent !== text) element.textContent = text; }
function dress(element, className) { if (element.className !== className) element.className = className; }
function show(element, shown) { if (element.hidden === shown) element.hidden = !shown; }

// The children of a list, by key: made once, updated, removed, in the order given.
class Keyed {
  constructor(list, create) { this.list = list; this.create = create; this.items = new Map(); }
  update(entries, fill) {
    const seen = new Set();
    let before = null;
    for (const [key, value] of entries) {
      seen.add(key);
      let item = this.items.get(key);
      if (!item) { item = this.create(key, value); this.items.set(key, item); }
      const at = before ? before.nextSibling : this.list.firstChild;
      if (item.root !== at) this.list.insertBefore(item.root, at);
      before = item.root;
      fill(item, value);
    }
    for (const [key, item] of this.items) {
      if (!seen.has(key)) { item.root.remove(); if (item.gone) item.gone(); this.items.delete(key); }
    }
  }
}

// ---- words ----------------------------------------------------------------------------------------------------------

function span(seconds) {
  const s = Math.floor(seconds);
  return s < 120 ? `${s} s` : s < 7200 ? `${Math.floor(s / 60)} min` : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}
const trip = (us) => us == null ? "round trip not known" : us < 10000 ? `${(Math.floor(us / 100) / 10).toFixed(1)} ms` : `${Math.floor(us / 1000)} ms`;
const heard = (ms) => ms == null ? "never heard" : ms < 10000 ? `heard ${(Math.floor(ms / 100) / 10).toFixed(1)} s ago` : `heard ${span(ms / 1000)} ago`;
function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return `${bytes < 10 && unit !== "B" ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}
const format = new Intl.NumberFormat("en");
const plural = (n, thing) => n === 1 ? `1 ${thing}` : `${format.format(n)} ${thing}s`;
const fault = (error) => error ? `${error.reason} at hop ${error.hop}, ${span(error.age_s)} ago: ${error.message}` : "";

// ---- rates ----------------------------------------------------------------------------------------------------------

// The rates of some counters in each second of the last ten minutes, or the values of gauges.
class Series {
  constructor(count, gauge) {
    this.rings = Array.from({ length: count }, () => new Float32Array(SECONDS));
    this.gauge = gauge; this.last = null; this.at = -1;
  }
  add(values, now) {
    const passed = this.last ? Math.max(1, Math.min(SECONDS, now - this.at)) : 1;
    this.rings.forEach((ring, index) => {
      const before = this.last ? this.last[index] : values[index];
      // A counter that has fallen belongs to a process that began anew.
      const value = this.gauge ? values[index] : Math.max(0, values[index] - before) / passed;
      for (let second = now - passed + 1; second <= now; second++) ring[(second + SECONDS) % SECONDS] = value;
    });
    this.last = values; this.at = now;
  }
  latest(index) { return this.rings[index][this.at % SECONDS] || 0; }
  draw(lines) {
    const width = SECONDS / POINTS;
    let top = 1e-9;
    const all = this.rings.map((ring) => {
      const points = [];
      for (let point = 0; point < POINTS; point++) {
        let most = 0;
        for (let i = 0; i < width; i++) most = Math.max(most, ring[(this.at + 1 + point * width + i) % SECONDS]);
        top = Math.max(top, most);
        points.push(most);
      }
      return points;
    });
    all.forEach((points, index) => {
      const text = points.map((value, x) => `${x},${(27 - 25 * value / top).toFixed(1)}`).join(" ");
      if (lines[index].getAttribute("points") !== text) lines[index].setAttribute("points", text);
    });
  }
}
function plot(count, label) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("class", "plot");
  svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 28`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const lines = Array.from({ length: count }, (_, index) => {
    const line = document.createElementNS(ns, "polyline");
    if (index) line.setAttribute("class", "two");
    return svg.appendChild(line);
  });
  return { svg, lines };
}
// Plots are drawn only while they can be seen.
const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.isIntersecting ? visible.add(entry.target) : visible.delete(entry.target);
});
const histories = new Map();
function history(key, values, now, gauge = false) {
  let series = histories.get(key);
  if (!series) histories.set(key, series = new Series(values.length, gauge));
  if (series.at !== now) series.add(values, now);
  series.used = now;
  return series;
}

// ---- the chain ------------------------------------------------------------------------------------------------------

const unknownHop = (facts) => ({ state: "unknown", facts });
const linkHop = (link) => link
  ? { state: link.state, facts: `${trip(link.rtt_us)}, ${heard(link.last_heard_ms)}` }
  : unknownHop("no link");
const order = ["up", "down", "suspect", "lost"];
const bestAgent = (agents) => [...agents].sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state))[0];

function edgeChain(status, subject, item) {
  const relayOf = (name) => status.links.find((l) => l.peer === name) || status.links.find((l) => l.state === "up") || status.links[0];
  if (subject === "service") {
    const link = relayOf();
    return {
      nodes: ["applications", "sidecars", link ? link.peer : "none", status.machine, item.target],
      hops: [unknownHop("seen by the sidecar only"), unknownHop("seen by relay and sidecar only"), linkHop(link),
        { state: item.state, facts: `${plural(item.sessions.open, "session")} open` }],
      note: `Service ${item.name}, as its agent ${status.machine} sees it.`,
    };
  }
  const agent = bestAgent(item.agents);
  const link = relayOf(agent && agent.relay);
  const far = agent
    ? { state: agent.state, facts: `${trip(agent.rtt_us)}, ${agent.last_heard_ms == null ? "no link" : heard(agent.last_heard_ms)}` }
    : item.agents_known ? { state: "absent", facts: "nobody serves it" } : unknownHop("no relay has said who serves it");
  // Of an agent that says its server is down the link is well.
  const hop = agent && agent.state === "down" ? { ...far, state: "up" } : far;
  const server = !agent || agent.state === "lost" ? unknownHop("not known")
    : agent.state === "down" ? { state: "down", facts: "the agent says that it does not serve" }
    : { state: agent.state === "up" ? "up" : "unknown", facts: agent.state === "up" ? "the agent takes sessions for it" : "not known" };
  const more = item.agents.length > 1 ? ` ${item.agents.length} agents serve it, ${item.agents.filter((a) => a.state === "up").length} of them up.` : "";
  return {
    nodes: ["on this machine", status.machine, link ? link.peer : "none", agent ? agent.machine : item.agents_known ? "none" : "not known", item.name],
    hops: [{ state: item.state, facts: `${plural(item.sessions.open, "session")} open, ${item.listen}` }, linkHop(link), hop, server],
    note: `Mapping ${item.name}, as the sidecar on ${status.machine} sees it.${more}`,
  };
}
function relayChain(status, item) {
  const slowest = (links) => [...links].sort((a, b) => (b.last_heard_ms || 0) - (a.last_heard_ms || 0))[0];
  const agents = new Set(status.services.flatMap((s) => s.agents.map((a) => a.machine)));
  const dialling = status.links.filter((l) => !agents.has(l.machine));
  const quiet = slowest(dialling);
  const agent = item && (item.agents.find((a) => a.state === "up") || item.agents[0]);
  const link = agent && status.links.find((l) => l.machine === agent.machine);
  return {
    nodes: ["applications", plural(dialling.length, "machine"), status.name, agent ? agent.machine : "none", item ? item.name : "none"],
    hops: [unknownHop("seen by the sidecar only"),
      quiet ? { state: dialling.some((l) => l.state === "suspect") ? "suspect" : "up", facts: `longest silence: ${heard(quiet.last_heard_ms)}` } : unknownHop("no machine that dials"),
      link ? linkHop(link) : { state: item ? "lost" : "unknown", facts: "no link" },
      agent ? { state: agent.state, facts: `${plural(agent.sessions, "session")} open` } : unknownHop("not known")],
    note: item ? `Service ${item.name}, as the relay ${status.name} sees it.` : `The relay ${status.name}; nobody publishes anything.`,
  };
}

const ROLES = ["application", "sidecar", "relay", "agent", "server"];
const NODE_PLACES = [null, "sidecar", "relay", "agent", null];
const HOP_PLACES = ["application_sidecar", "sidecar_relay", "relay_agent", "agent_server"];
const chainParts = [];
function buildChain() {
  for (let i = 0; i < 9; i++) {
    const root = make("li", i % 2 ? "hop" : "node");
    const title = root.appendChild(make("strong", "", i % 2 ? "" : ROLES[i / 2]));
    const state = i % 2 ? root.insertBefore(make("span"), null) : null;
    const pill = state ? state.appendChild(make("span", "pill")) : null;
    const facts = root.appendChild(make("span", "facts"));
    const blame = root.appendChild(make("span", "blame"));
    if (i % 2) title.hidden = true;
    byId("chain").appendChild(root);
    chainParts.push({ root, pill, facts, blame });
  }
}
function drawChain(chain, findings) {
  say(byId("chain-note"), chain.note);
  chainParts.forEach((part, index) => {
    const hop = index % 2 ? chain.hops[(index - 1) / 2] : null;
    const place = hop ? HOP_PLACES[(index - 1) / 2] : NODE_PLACES[index / 2];
    const finding = findings.find((f) => f.place === place);
    let mood = hop ? tone(hop.state) : "";
    if (finding) mood = finding.level;
    dress(part.root, `${hop ? "hop" : "node"} ${mood}`);
    say(part.facts, hop ? hop.facts : chain.nodes[index / 2]);
    if (part.pill) { say(part.pill, hop.state); dress(part.pill, `pill ${tone(hop.state)}`); }
    show(part.blame, Boolean(finding));
    say(part.blame, finding ? `failing${finding.reason ? `: ${finding.reason}` : ""}` : "");
    part.root.dataset.place = place || "";
    part.root.dataset.blamed = finding ? finding.reason || "none" : "";
  });
}

// ---- lists ----------------------------------------------------------------------------------------------------------

let selected = null; // [subject, name]
function select(subject, name) { selected = [subject, name]; if (latest) draw(latest); }

function createItem(subject) {
  return (key, value) => {
    const root = make("li");
    const title = subject === "link" ? make("strong") : make("button");
    const item = { root, title, state: make("span"), pill: make("span", "pill"), facts: make("span", "soft"), rates: make("span", "soft rates"), plot: plot(2, `${value.title}: bytes sent and received in the last 10 minutes`), where: make("span", "wide soft"), error: make("span", "wide"), hints: make("ul", "wide") };
    item.state.append(item.pill);
    if (subject !== "link") { title.type = "button"; title.addEventListener("click", () => select(subject, value.name)); }
    root.append(title, item.state, item.facts, item.rates, item.plot.svg, item.where, item.error, item.hints);
    item.keyedHints = new Keyed(item.hints, () => ({ root: make("li", "hint") }));
    watcher.observe(root);
    item.gone = () => { watcher.unobserve(root); visible.delete(root); };
    return item;
  };
}
function fillItem(item, view) {
  say(item.title, view.title);
  if (view.pressed !== undefined) {
    const pressed = String(view.pressed);
    if (item.title.getAttribute("aria-pressed") !== pressed) item.title.setAttribute("aria-pressed", pressed);
  }
  say(item.pill, view.state);
  dress(item.pill, `pill ${tone(view.state)}`);
  say(item.facts, view.facts);
  say(item.where, view.where || "");
  show(item.where, Boolean(view.where));
  say(item.error, view.error ? `Last error: ${view.error}` : "");
  show(item.error, Boolean(view.error));
  item.keyedHints.update((view.hints || []).map((hint) => [hint.kind, hint]), (part, hint) => say(part.root, `${hint.message} (${hint.kind}, seen ${plural(hint.count, "time")})`));
  show(item.hints, Boolean(view.hints && view.hints.length));
  if (view.series) {
    say(item.rates, `${size(view.series.latest(0))}/s sent, ${size(view.series.latest(1))}/s received`);
    if (visible.has(item.root)) view.series.draw(item.plot.lines);
  } else { show(item.plot.svg, false); item.plot.svg.style.display = "none"; say(item.rates, view.rates || ""); }
}

class List {
  constructor(id, subject) {
    this.list = byId(id); this.section = byId(`${id}-section`); this.title = byId(`${id}-title`);
    this.word = this.title.textContent;
    this.turn = 0;
    this.keyed = new Keyed(this.list, createItem(subject));
    this.bar = make("p", "bar");
    const label = make("label", "", "Filter by name: ");
    this.filter = make("input");
    this.filter.type = "search";
    label.append(this.filter);
    const unwell = make("label");
    this.unwell = make("input");
    this.unwell.type = "checkbox";
    unwell.append(this.unwell, " only what is not well");
    this.bar.append(label, unwell);
    this.title.after(this.bar);
    for (const input of [this.filter, this.unwell]) input.addEventListener("input", () => latest && draw(latest));
  }
  update(views) {
    const text = this.filter.value.trim().toLowerCase();
    let found = views.filter((view) => view.title.toLowerCase().includes(text));
    if (this.unwell.checked) found = found.filter((view) => view.unwell);
    const some = found.slice(0, SHOWN);
    // What can be seen is drawn each time, the rest of a long list in turn.
    this.turn = (this.turn + 1) % 10;
    let index = 0;
    this.keyed.update(some.map((view) => [view.key, view]), (item, view) => {
      if (visible.has(item.root) || !item.drawn || some.length < 50 || index++ % 10 === this.turn) fillItem(item, view);
      item.drawn = true;
    });
    show(this.bar, views.length > 5);
    show(this.section, views.length > 0);
    say(this.title, views.length > 5 ? `${this.word}: ${format.format(some.length)} of ${format.format(views.length)} shown` : this.word);
  }
}

// ---- all together ---------------------------------------------------------------------------------------------------

const keyedFindings = new Keyed(byId("findings"), () => {
  const root = make("li");
  const pill = root.appendChild(make("span", "pill"));
  const text = root.appendChild(make("span"));
  return { root, pill, text };
});
function drawVerdict(status) {
  const worst = status.findings[0];
  let headline = "All is well";
  if (worst) headline = worst.level === "bad" ? `Not well: failing ${PLACES[worst.place]}` : `It works, but look at the ${PLACES[worst.place]}`;
  say(byId("headline"), headline);
  dress(byId("verdict"), worst ? worst.level : "good");
  const shown = status.findings.slice(0, 8);
  const entries = shown.map((finding) => [`${finding.subject}/${finding.name}/${finding.place}`, finding]);
  const left = status.findings.length - shown.length;
  if (left > 0) entries.push(["more", { level: worst.level, place: "", text: `and ${plural(left, "more finding")}` }]);
  keyedFindings.update(entries, (item, finding) => {
    dress(item.pill, `pill ${finding.level}`);
    say(item.pill, finding.level);
    say(item.text, ` ${finding.text}${finding.place ? `. Failing ${PLACES[finding.place]}.` : ""}`);
    item.root.dataset.place = finding.place;
    item.root.dataset.reason = finding.reason || "";
  });
  const title = `${status.machine || status.name}: ${worst ? (worst.level === "bad" ? "not well" : "look at it") : "all is well"}`;
  if (document.title !== title) document.title = title;
}

const lists = { mappings: new List("mappings", "mapping"), services: new List("services", "service"), links: new List("links", "link") };
const totals = new Keyed(byId("totals"), (key) => {
  const root = make("li");
  const label = root.appendChild(make("span"));
  const drawn = plot(1, `${key === "sessions" ? "open sessions" : `bytes ${key}`} in the last 10 minutes`);
  root.append(drawn.svg);
  return { root, label, drawn };
});
let latest = null;

function itemView(subject, item, findings, now) {
  const unwell = findings.some((f) => f.subject === subject && f.name === item.name);
  const state = subject === "served" ? (item.agents.length ? (item.agents.find((a) => a.state === "up") || item.agents[0]).state : "absent") : item.state;
  const view = { key: item.name, name: item.name, title: item.name, state, unwell };
  const kind = subject === "served" ? "service" : subject;
  view.pressed = Boolean(selected && selected[0] === kind && selected[1] === item.name);
  if (subject === "served") {
    view.facts = plural(item.agents.reduce((sum, agent) => sum + agent.sessions, 0), "session");
    view.rates = item.agents.map((agent) => `${agent.machine} (${agent.state})`).join(", ") || "its agent's return is awaited";
  } else {
    view.facts = `${format.format(item.sessions.open)} open, ${format.format(item.sessions.total)} in all`;
    view.where = item.listen || item.target;
    view.error = fault(item.last_error);
    view.hints = item.hints;
    view.series = history(`${subject}/${item.name}`, [item.bytes.sent, item.bytes.received], now);
  }
  return view;
}
function linkView(link, index, findings, now) {
  const title = link.peer || link.machine;
  const view = { key: `${title}/${link.address}/${link.instance || index}`, title, state: link.state };
  view.unwell = link.state !== "up" || findings.some((f) => f.subject === "link" && f.name === title);
  view.facts = `${trip(link.rtt_us)}, ${heard(link.last_heard_ms)}`;
  view.where = `${link.address}, ${plural(link.sessions, "session")}, liveness ${link.liveness}`;
  view.error = fault(link.last_error);
  if (link.bytes) view.series = history(`link/${link.relay}`, [link.bytes.sent, link.bytes.received], now);
  else view.rates = "";
  return view;
}
function drawTotals(status, now) {
  const counted = status.role === "relay" ? [status] : status.links;
  const sum = (pick) => counted.reduce((total, one) => total + pick(one), 0);
  const open = status.role === "relay" ? status.sessions.open : [...status.mappings, ...status.services].reduce((n, one) => n + one.sessions.open, 0);
  const entries = [
    ["sent", history("total/sent", [sum((one) => one.bytes.sent)], now), (v) => `${size(v)}/s sent`],
    ["received", history("total/received", [sum((one) => one.bytes.received)], now), (v) => `${size(v)}/s received`],
    ["sessions", history("total/sessions", [open], now, true), (v) => `${plural(Math.round(v), "session")} open`],
  ];
  totals.update(entries.map((entry) => [entry[0], entry]), (item, [, series, words]) => {
    say(item.label, words(series.latest(0)));
    series.draw(item.drawn.lines);
  });
}
function chainFor(status) {
  const groups = status.role === "relay" ? [["service", status.services]] : [["mapping", status.mappings], ["service", status.services]];
  const find = (subject, name) => { const group = groups.find((g) => g[0] === subject); return group && group[1].find((item) => item.name === name); };
  let subject = selected && selected[0], item = selected && find(selected[0], selected[1]);
  if (!item) {
    // Until somebody chooses, what is worst is drawn.
    const worst = status.findings.find((f) => find(f.subject, f.name));
    if (worst) [subject, item] = [worst.subject, find(worst.subject, worst.name)];
    else [subject, item] = groups.map((g) => [g[0], g[1][0]]).find((pair) => pair[1]) || [groups[0][0], null];
  }
  const own = status.findings.filter((f) => item && f.subject === subject && f.name === item.name);
  const shared = status.findings.filter((f) => f.subject === "link" || f.subject === "process");
  const findings = [...own, ...shared];
  if (status.role === "relay") return [relayChain(status, item), findings];
  if (item) return [edgeChain(status, subject, item), findings];
  const link = status.links[0];
  return [{ nodes: ["none", status.machine, link ? link.peer : "none", "none", "none"],
    hops: [unknownHop("no mapping"), linkHop(link), unknownHop("no mapping"), unknownHop("no mapping")],
    note: "This edge has no mapping and no service." }, findings];
}
function draw(status) {
  latest = status;
  const now = Math.floor(performance.now() / 1000);
  say(byId("name"), status.machine || status.name);
  say(byId("about"), `${status.role}, version ${status.version}, up for ${span(status.uptime_s)}`);
  drawVerdict(status);
  drawChain(...chainFor(status));
  drawTotals(status, now);
  const findings = status.findings;
  lists.mappings.update((status.mappings || []).map((item) => itemView("mapping", item, findings, now)));
  lists.services.update(status.services.map((item) => itemView(status.role === "relay" ? "served" : "service", item, findings, now)));
  lists.links.update(status.links.map((link, index) => linkView(link, index, findings, now)));
  // What is gone is forgotten.
  for (const [key, series] of histories) if (series.used < now - SECONDS) histories.delete(key);
}

let paused = false, answered = 0;
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
});
async function poll() {
  const began = performance.now();
  if (!paused) {
    try {
      const answer = await fetch("/status", { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (!answer.ok) throw new Error(`/status answered ${answer.status}`);
      const status = await answer.json();
      if (!paused) draw(status);
      answered = performance.now();
      dress(document.body, "");
      say(byId("age"), "Live.");
    } catch (error) {
      dress(document.body, "stale");
      dress(byId("verdict"), "bad");
      say(byId("headline"), "This process does not answer");
      say(byId("age"), answered ? `The rest is as it was ${span((performance.now() - answered) / 1000)} ago.` : "Nothing was heard yet.");
    }
  } else say(byId("age"), "Paused.");
  // A process that takes long to answer is asked less often.
  const took = performance.now() - began;
  setTimeout(poll, Math.max(1000, 3 * took) - Math.min(took, 900));
}
buildChain();
poll();
