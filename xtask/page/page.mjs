// The status page in a real browser, before real processes: `cargo xtask page` starts this.
//
// Says what each face of a process names as the culprit (page, `hopline status`, /status, /metrics) while hops of the
// chain break one after the other; looks at the page in light, dark and at 390 px; lets axe look for barriers; and shows it
// 500 mappings with 10,000 sessions. Exits 0 only if all of it is as it should be.

import { spawn, spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import fs from "node:fs";
import http from "node:http";
import net from "node:net";
import os from "node:os";
import path from "node:path";

const [bin, chromium, modules, out] = process.argv.slice(2);
const require = createRequire(path.join(modules, "node_modules", "x.js"));
const { chromium: browserType } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "hopline-page-"));
const PATIENCE = 30_000;
const BLAME = {
  sidecar_relay: "hop: sidecar → relay", relay_agent: "hop: relay → agent",
  agent_server: "hop: agent → server", relay: "process: relay",
};
const children = new Set();
let failures = 0;

function check(what, good, detail = "") {
  if (!good) failures++;
  console.log(`${good ? "good  " : "FAILED"} ${what}${good || !detail ? "" : `: ${detail}`}`);
}
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
async function until(what, look) {
  const began = Date.now();
  let last;
  while (Date.now() - began < PATIENCE) {
    try { last = await look(); if (last) return last; } catch (error) { last = error; }
    await sleep(50);
  }
  throw new Error(`${what}: not within ${PATIENCE} ms (last: ${last})`);
}

// ---- processes ------------------------------------------------------------------------------------------------------

function hopline(...args) {
  const done = spawnSync(bin, args, { encoding: "utf8", env: { ...process.env, NO_COLOR: "1", COLUMNS: "200" } });
  return { code: done.status, text: done.stdout + done.stderr };
}
function start(name, ...args) {
  const log = fs.openSync(path.join(folder, `${name}.log`), "a");
  const child = spawn(bin, args, { stdio: ["ignore", log, log] });
  child.gone = new Promise((resolve) => child.once("exit", resolve));
  children.add(child);
  child.gone.then(() => children.delete(child));
  return child;
}
async function kill(child) { child.kill("SIGKILL"); await child.gone; }
async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}
function join(relay, name, ...grants) {
  const token = path.join(folder, `${name}.token`);
  const made = spawnSync(bin, ["token", "create", "--state", path.join(folder, "relay"), "--relay", relay, ...grants], { encoding: "utf8" });
  if (made.status !== 0) throw new Error(made.stderr);
  fs.writeFileSync(token, made.stdout, { mode: 0o600 });
  const joined = hopline("join", token, "--name", name, "--state", path.join(folder, name));
  if (joined.code !== 0) throw new Error(joined.text);
}
const get = async (port, where) => (await fetch(`http://127.0.0.1:${port}${where}`)).text();
const statusOf = async (port) => JSON.parse(await get(port, "/status"));

class Path {
  async start() {
    [this.relayPort, this.relayAdmin, this.agentAdmin, this.sidecarAdmin, this.mappingPort] =
      await Promise.all(Array.from({ length: 5 }, freePort));
    this.server = net.createServer((socket) => { socket.on("error", () => {}); socket.pipe(socket); }).listen(0, "127.0.0.1");
    await new Promise((resolve) => this.server.once("listening", resolve));
    this.serverPort = this.server.address().port;
    this.relay = this.startRelay();
    await until("the relay listens", () => statusOf(this.relayAdmin));
    const relay = `127.0.0.1:${this.relayPort}`;
    join(relay, "db-1", "--publish", "*");
    join(relay, "web-1", "--dial", "*");
    fs.writeFileSync(path.join(folder, "agent.yaml"), `status: 127.0.0.1:${this.agentAdmin}\nkeepalive: fast\nservices:\n  ledger: { tcp: { tcp: ${this.serverPort} } }\n  audit: { tcp: { tcp: ${this.serverPort} } }\n`);
    fs.writeFileSync(path.join(folder, "sidecar.yaml"),
      `status: 127.0.0.1:${this.sidecarAdmin}\nkeepalive: fast\nconnect:\n  ledger: { listen: "127.0.0.1:${this.mappingPort}" }\n  audit: { listen: "unix:${folder}/audit.sock" }\n`);
    this.agent = this.startAgent();
    this.sidecar = start("sidecar", "up", "-c", path.join(folder, "sidecar.yaml"), "--state", path.join(folder, "web-1"));
    await this.well();
  }
  startRelay() {
    return start("relay", "relay", "--name", "relay-a", "--listen", `127.0.0.1:${this.relayPort}`, "--state", path.join(folder, "relay"), "--admin", `127.0.0.1:${this.relayAdmin}`);
  }
  startAgent() { return start("agent", "up", "-c", path.join(folder, "agent.yaml"), "--state", path.join(folder, "db-1")); }
  well() {
    return until("the path is well", async () => {
      const status = await statusOf(this.sidecarAdmin);
      return status.healthy && status.mappings.every((m) => m.agents.some((a) => a.state === "up"));
    });
  }
  // Some bytes there and back, for as long as it is asked to.
  traffic() {
    const socket = net.connect(this.mappingPort, "127.0.0.1");
    const timer = setInterval(() => socket.write(Buffer.alloc(2_000 + 8_000 * Math.random())), 100);
    socket.on("data", () => {});
    socket.on("error", () => clearInterval(timer));
    socket.on("close", () => clearInterval(timer));
    return socket;
  }
}

// ---- the browser ----------------------------------------------------------------------------------------------------

async function open(browser, base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  page.elsewhere = [];
  page.complaints = [];
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(base) && !url.startsWith("data:")) page.elsewhere.push(url);
  });
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) page.complaints.push(message.text()); });
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  await page.goto(base);
  await page.waitForFunction(() => document.getElementById("headline").textContent !== "Not known yet");
  return page;
}
async function barriers(page, what) {
  // By the debugger, which the page's policy does not bind.
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const list = found.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.target.join(" ")).slice(0, 3).join(", ")}`);
  check(`axe finds no violation: ${what}`, list.length === 0, list.join("; "));
}
async function shoot(page, name) { await page.screenshot({ path: path.join(out, `${name}.png`), fullPage: true }); }

const withoutAge = (text) => text.replace(/\d+ s ago/g, "just now");

// All faces name the same place and the same reason.
async function sameBlame(browser, port, what, place, reason) {
  const finding = await until(`${what}: /status names ${place}`, async () => {
    const found = (await statusOf(port)).findings[0];
    return found && found.place === place && found.reason === reason && found;
  });
  check(`${what}: /status names ${place} and ${reason}`, true);
  const base = `http://127.0.0.1:${port}/`;
  const page = await open(browser, base);
  const shown = await until(`${what}: the page names it`, async () => {
    const shown = await page.evaluate(() => ({
      headline: document.getElementById("headline").textContent,
      findings: [...document.querySelectorAll("#findings li")].map((li) => ({ place: li.dataset.place, reason: li.dataset.reason })),
      blamed: [...document.querySelectorAll("#chain li")].filter((li) => li.dataset.blamed).map((li) => [li.dataset.place, li.dataset.blamed]),
    }));
    return shown.headline.includes(BLAME[place]) && shown;
  });
  check(`${what}: the page's headline`, shown.headline.includes(BLAME[place]), shown.headline);
  check(`${what}: the page's first finding`, shown.findings[0].place === place && shown.findings[0].reason === reason, JSON.stringify(shown.findings));
  check(`${what}: the page's chain marks it`, shown.blamed.some(([p, r]) => p === place && r === reason), JSON.stringify(shown.blamed));
  const metrics = await get(port, "/metrics");
  const line = `hopline_findings{level="${finding.level}",place="${place}",reason="${reason}"} `;
  check(`${what}: /metrics`, metrics.includes(line), metrics.split("\n").filter((l) => l.startsWith("hopline_findings")).join(" "));
  const cli = hopline("status", `127.0.0.1:${port}`);
  check(`${what}: hopline status`, cli.text.split("\n")[1].includes(BLAME[place]) && cli.text.includes(`${reason} at hop`), cli.text);
  const healthy = (await statusOf(port)).healthy;
  check(`${what}: its exit code`, (cli.code === 0) === healthy, `${cli.code} while healthy is ${healthy}`);
  return page;
}

async function looks(browser, port, name, options = {}) {
  const base = `http://127.0.0.1:${port}/`;
  for (const [variant, more] of [
    ["light", { colorScheme: "light" }],
    ["dark", { colorScheme: "dark" }],
    ["390", { colorScheme: "light", viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true }],
    ["390-dark", { colorScheme: "dark", viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true }],
  ]) {
    const page = await open(browser, base, { ...more, ...options });
    await sleep(options.settle || 1_500);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    check(`${name}, ${variant}: nothing is wider than the window`, overflow <= 0, `${overflow} px`);
    await barriers(page, `${name}, ${variant}`);
    if (variant !== "390-dark") await shoot(page, `${name}-${variant}`);
    check(`${name}, ${variant}: no request to anywhere else`, page.elsewhere.length === 0, page.elsewhere.join(" "));
    check(`${name}, ${variant}: the browser has nothing to complain of`, page.complaints.length === 0, page.complaints.join(" | "));
    await page.context().close();
  }
}

async function keyboard(browser, port) {
  const page = await open(browser, `http://127.0.0.1:${port}/`);
  const reached = [];
  for (let i = 0; i < 8; i++) {
    await page.keyboard.press("Tab");
    reached.push(await page.evaluate(() => document.activeElement.textContent));
  }
  check("keyboard: every mapping is reached by Tab", ["audit", "ledger"].every((name) => reached.includes(name)), reached.join(", "));
  await page.getByRole("button", { name: "ledger" }).focus();
  await page.keyboard.press("Enter");
  const note = await page.textContent("#chain-note");
  check("keyboard: Enter draws a mapping's chain", note.includes("Mapping ledger"), note);
  const pressed = await page.getByRole("button", { name: "ledger" }).getAttribute("aria-pressed");
  check("keyboard: the choice is said", pressed === "true", String(pressed));
  const focus = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  check("keyboard: the focus is seen", focus !== "none", focus);
  await sleep(2_200);
  check("keyboard: updates leave the focus where it is", await page.evaluate(() => document.activeElement.textContent) === "ledger");
  await page.getByRole("button", { name: "Pause updates" }).press("Enter");
  await until("paused", async () => (await page.textContent("#age")).includes("Paused"));
  check("keyboard: updates can be paused", true);
  await page.context().close();
}

// ---- statuses that no small path has --------------------------------------------------------------------------------

// Serves the page of a real process with statuses of our own.
async function stage(port, status) {
  const real = await fetch(`http://127.0.0.1:${port}/`);
  const page = await real.text();
  const policy = real.headers.get("content-security-policy");
  const server = http.createServer((request, response) => {
    if (request.url === "/status") {
      response.setHeader("content-type", "application/json");
      return response.end(JSON.stringify(status()));
    }
    response.setHeader("content-type", "text/html; charset=utf-8");
    response.setHeader("content-security-policy", policy);
    response.end(page);
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  return server;
}

// What one update costs while nobody touches the page, by the browser's own count.
async function updates(page, count) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  const busy = async () => (await session.send("Performance.getMetrics")).metrics.find((m) => m.name === "TaskDuration").value * 1_000;
  const [began, first] = [await busy(), count()];
  await sleep(10_000);
  const [took, times] = [(await busy()) - began, count() - first];
  await session.detach();
  return { times, each: took / times };
}

// What Prometheus itself says of what a process serves.
async function scraped(what, port) {
  const done = spawnSync("promtool", ["check", "metrics"], { input: await get(port, "/metrics"), encoding: "utf8" });
  check(`promtool reads the metrics of ${what}, and has nothing to say`, done.status === 0 && done.stdout + done.stderr === "", `${done.error || ""}${done.stdout}${done.stderr}`);
}

const smooth = (frames) => frames.p99 < 100 && Math.max(0, ...frames.longs) < 250;
async function many(browser, port) {
  const model = await statusOf(port);
  const ledger = model.mappings.find((m) => m.name === "ledger");
  let second = 0;
  const server = await stage(port, () => {
    second++;
    const mappings = Array.from({ length: 500 }, (_, i) => ({
      ...structuredClone(ledger), name: `service-${i}`, sessions: { open: 20 + (i * second) % 3 - 1, total: 1_000 + second },
      bytes: { sent: second * 1_000 * (i + 1), received: second * 3_000 * (500 - i) + (second * i * 97) % 5_000 },
    }));
    mappings.forEach((m, i) => { m.sessions.open = 20; m.agents[0].last_heard_ms = (i * second) % 4_000; });
    return { ...model, mappings, findings: [], healthy: true };
  });
  const page = await open(browser, `http://127.0.0.1:${server.address().port}/`);
  const sessions = await page.textContent("#totals");
  check("500 mappings: 10,000 sessions are shown", sessions.includes("10,000 sessions open"), sessions);
  const look = () => page.evaluate(async () => {
    const gaps = [];
    const longs = [];
    new PerformanceObserver((list) => longs.push(...list.getEntries().map((e) => e.duration))).observe({ type: "longtask" });
    let before = await new Promise(requestAnimationFrame);
    const end = before + 10_000;
    while (before < end) {
      const now = await new Promise(requestAnimationFrame);
      gaps.push(now - before);
      before = now;
      window.scrollBy(0, 30); // it is read meanwhile
    }
    gaps.sort((a, b) => a - b);
    window.scrollTo(0, 0);
    return { count: gaps.length, median: gaps[gaps.length >> 1], p99: gaps[Math.floor(gaps.length * 0.99)], worst: gaps.at(-1), longs };
  });
  // A machine that does something else at the time spoils one look, not three.
  let frames = await look();
  for (let again = 0; again < 2 && !smooth(frames); again++) frames = await look();
  const longest = Math.max(0, ...frames.longs);
  console.log(`       500 mappings, 10,000 sessions, 10 s of scrolling: ${frames.count} frames, median ${frames.median.toFixed(1)} ms, 99 % ${frames.p99.toFixed(1)} ms, ` +
    `worst ${frames.worst.toFixed(1)} ms; ${frames.longs.length} tasks over 50 ms, the longest ${longest.toFixed(0)} ms`);
  check("500 mappings: the page stays smooth (99 % of frames within 100 ms, no task over 250 ms)", smooth(frames));
  let cost = await updates(page, () => second);
  for (let again = 0; again < 2 && !(cost.each < 250); again++) cost = await updates(page, () => second);
  const weight = (await get(port, "/")).length;
  const answer = (await get(server.address().port, "/status")).length;
  console.log(`       500 mappings: the page has ${weight} bytes, a status ${answer}; ${cost.times} updates in 10 s, ${cost.each.toFixed(0)} ms of the browser's time each`);
  check("500 mappings: the page has less than 64 KiB, all of it", weight < 64 << 10, `${weight} bytes`);
  check("500 mappings: an update a second, for less than 250 ms each", cost.times >= 8 && cost.each < 250, `${cost.times} updates of ${cost.each} ms`);
  await page.getByLabel("Filter by name:").first().fill("service-49");
  const shown = await until("the filter works", async () => (await page.locator("#mappings > li").count()) === 11 && 11);
  check("500 mappings: the filter finds one", shown === 11);
  await page.evaluate(() => window.scrollTo(0, 0));
  await barriers(page, "500 mappings");
  await page.context().close();
  server.close();
}

async function hostile(browser, port) {
  const model = await statusOf(port);
  const evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e";
  const server = await stage(port, () => {
    const status = structuredClone(model);
    status.machine = evil;
    status.links[0].peer = evil;
    status.links[0].last_error = { reason: evil, hop: 1, message: evil, age_s: 1 };
    status.mappings[0].name = evil;
    status.mappings[0].last_error = { reason: evil, hop: 1, message: evil, age_s: 1 };
    status.mappings[0].hints = [{ kind: evil, message: evil, evidence: {}, count: 1 }];
    status.mappings[0].agents = [{ machine: evil, relay: evil, state: evil, rtt_us: 1, last_heard_ms: 1, age_ms: 1 }];
    status.findings = [{ level: "bad", subject: "mapping", name: evil, place: "relay_agent", reason: evil, hop: 1, text: evil }];
    return status;
  });
  const page = await open(browser, `http://127.0.0.1:${server.address().port}/`);
  await sleep(1_200);
  const found = await page.evaluate(() => ({ images: document.querySelectorAll("img").length, scripts: document.scripts.length, title: document.title, text: document.body.textContent.includes("onerror") }));
  check("a peer's markup is text", found.images === 0 && found.scripts === 1 && found.title !== "owned" && found.text, JSON.stringify(found));
  check("a peer's markup asks for nothing", page.elsewhere.length === 0 && page.complaints.length === 0, page.complaints.join(" | "));
  await page.context().close();
  server.close();
}

// ---- the play -------------------------------------------------------------------------------------------------------

async function main() {
  fs.mkdirSync(out, { recursive: true });
  const way = new Path();
  await way.start();
  const browser = await browserType.launch({ executablePath: chromium, args: process.getuid() === 0 ? ["--no-sandbox"] : [] });
  try {
    let traffic = way.traffic();
    const page = await open(browser, `http://127.0.0.1:${way.sidecarAdmin}/`);
    check("all is well, and the page says so", (await page.textContent("#headline")) === "All is well", await page.textContent("#headline"));
    await page.getByRole("button", { name: "ledger" }).click();
    await sleep(12_000);
    check("rates are shown", /[1-9][\d.]* kB\/s sent/.test(await page.textContent("#totals")), await page.textContent("#totals"));
    const points = await page.getAttribute("#mappings li:nth-child(2) polyline", "points");
    check("the plot of a mapping moves", /,[0-9]\.\d|,1\d\.\d/.test(points || ""), String(points).slice(-80));
    await shoot(page, "sidecar-traffic");
    await page.context().close();
    await looks(browser, way.sidecarAdmin, "well");
    await looks(browser, way.relayAdmin, "relay");
    await looks(browser, way.agentAdmin, "agent");
    await keyboard(browser, way.sidecarAdmin);
    await many(browser, way.sidecarAdmin);
    await hostile(browser, way.sidecarAdmin);
    for (const [what, port] of [["a sidecar", way.sidecarAdmin], ["an agent", way.agentAdmin], ["a relay", way.relayAdmin]]) await scraped(what, port);

    // The agent dies: the hop from relay to agent.
    await kill(way.agent);
    (await sameBlame(browser, way.sidecarAdmin, "the agent is killed", "relay_agent", "conn_lost")).context().close();
    await looks(browser, way.sidecarAdmin, "agent-lost");
    way.agent = way.startAgent();
    await way.well();
    traffic.destroy();

    // The server is not there: the hop from agent to server.
    await new Promise((resolve) => { way.server.close(resolve); });
    const refused = net.connect(way.mappingPort, "127.0.0.1");
    refused.on("error", () => {});
    (await sameBlame(browser, way.sidecarAdmin, "the server is gone", "agent_server", "dial_failed")).context().close();
    (await sameBlame(browser, way.agentAdmin, "the server is gone, at the agent", "agent_server", "dial_failed")).context().close();

    // The relay dies: the hop from sidecar to relay; for the agent it is the hop from relay to agent.
    await kill(way.relay);
    (await sameBlame(browser, way.sidecarAdmin, "the relay is killed", "sidecar_relay", "conn_lost")).context().close();
    (await sameBlame(browser, way.agentAdmin, "the relay is killed, at the agent", "relay_agent", "conn_lost")).context().close();
    await looks(browser, way.sidecarAdmin, "relay-lost");
    const left = await open(browser, `http://127.0.0.1:${way.sidecarAdmin}/`);
    await kill(way.sidecar);
    await until("the page notices", async () => (await left.textContent("#headline")).includes("does not answer"));
    check("a process that is gone is not shown as well", true);
    await left.context().close();
  } finally {
    await browser.close();
  }
}

try {
  await main();
} catch (error) {
  failures++;
  console.log(`FAILED ${error.stack}`);
  for (const log of fs.readdirSync(folder).filter((name) => name.endsWith(".log"))) {
    console.log(`--- ${log}\n${fs.readFileSync(path.join(folder, log), "utf8").split("\n").slice(-15).join("\n")}`);
  }
} finally {
  for (const child of children) child.kill("SIGKILL");
  fs.rmSync(folder, { recursive: true, force: true });
}
console.log(failures === 0 ? "all good" : `${failures} FAILED`);
process.exit(failures === 0 ? 0 : 1);
