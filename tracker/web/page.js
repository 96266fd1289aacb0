"use strict";
// The tracker's page: polls its read-only JSON and shows it. Whatever members say of themselves
// becomes text nodes, never markup.

const EVERY_MS = 1000; // while a pull runs; a resting cluster is looked at less often
const RESTING_MS = 4000;
const ANSWER_MS = 6000;
const RATE_MS = 11000; // two heartbeats: members tell every 5 s, less would jump up and down
const MAX_ROWS = 500; // more make a phone slow, and nobody reads them

const $ = (id) => document.getElementById(id);
const samples = []; // of the last RATE_MS: when, and bytes taken by then
let lastGood = 0;

function bytes(count) {
  let value = count, unit = 0;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

function span(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// 99.96 % is not done: only what is complete reads "100 %".
const percent = (share) => (share >= 1 ? "100 %" : `${Math.floor(share * 1000) / 10} %`);
const named = (swarm) => swarm.label || `blake3:${swarm.digest.slice(0, 12)}`;
const chosen = () => (/^#model=([0-9a-f]{64})$/.exec(location.hash) || [])[1];
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function make(tag, className, parent) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (parent) parent.append(element);
  return element;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// One child per row, kept by key, so that nothing flickers and the focus stays where it was.
function reconcile(parent, rows, key, build, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const row of rows.slice(0, MAX_ROWS)) {
    const id = key(row);
    let child = known.get(id);
    if (!child) { child = build(row); child.dataset.key = id; }
    known.delete(id);
    update(child, row);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of known.values()) child.remove();
}

function more(id, shown, all, what) {
  $(id).hidden = all <= shown;
  say($(id), `and ${all - shown} more ${what}`);
}

function buildBar(parent) {
  const bar = make("div", "bar", parent);
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  for (const source of ["peers", "origin", "local"]) make("i", source, bar);
  return bar;
}

// The length is what is there; the colours are where it came from, as far as that is told.
function drawBar(bar, share, row, label) {
  const told = row.bytes_peers + row.bytes_origin;
  const parts = told + row.bytes_local > 0
    ? [row.bytes_peers, row.bytes_origin, row.bytes_local] : [0, 0, 1];
  const size = Math.max(row.bytes || 0, parts[0] + parts[1] + parts[2]) * share;
  if (row.bytes && size > 0) parts[2] = Math.max(parts[2], size - told);
  const sum = parts[0] + parts[1] + parts[2];
  [...bar.children].forEach((part, n) => { part.style.width = `${(100 * share * parts[n]) / sum}%`; });
  bar.setAttribute("aria-valuenow", String(Math.floor(share * 100)));
  bar.setAttribute("aria-label", label);
}

function buildModel(swarm) {
  const row = make("button", "model");
  row.type = "button";
  for (const name of ["name", "right"]) make("span", name, row);
  buildBar(row);
  for (const name of ["facts", "right sources", "wrong"]) make("span", name, row);
  row.addEventListener("click", () => {
    const digest = row.dataset.key;
    location.hash = chosen() === digest ? "" : `model=${digest}`;
  });
  return row;
}

function drawModel(row, swarm) {
  say(row.querySelector(".name"), named(swarm));
  say(row.querySelector(".right"), percent(swarm.share));
  drawBar(row.querySelector(".bar"), swarm.share, { ...swarm, bytes: swarm.bytes * swarm.members },
    `${named(swarm)}, mean over its nodes`);
  const size = swarm.bytes ? `${bytes(swarm.bytes)} · ` : "";
  const pulling = swarm.wanting ? ` · ${swarm.wanting} pulling` : "";
  say(row.querySelector(".facts"),
    `${size}complete on ${swarm.complete} of ${plural(swarm.members, "node")}${pulling}`);
  const alpha = swarm.alpha === null ? "" : ` (${swarm.alpha.toFixed(2)} ×)`;
  say(row.querySelector(".sources"),
    `storage ${bytes(swarm.bytes_origin)}${alpha} · peers ${bytes(swarm.bytes_peers)}`);
  const wrong = row.querySelector(".wrong");
  wrong.hidden = swarm.stopped_at_run === null;
  say(wrong, "stopped: the bytes in storage are not those of the manifest; push it again with --repair");
  row.setAttribute("aria-pressed", String(chosen() === swarm.digest));
}

function buildMember() {
  const card = make("div", "member");
  const line = make("p", "", card);
  for (const name of ["who", "share"]) make("span", name, line);
  buildBar(card);
  make("span", "note", card);
  return card;
}

function drawMember(card, member, swarm) {
  say(card.querySelector(".who"), member.name || member.node);
  card.querySelector(".who").title = `${member.node} at ${member.address}`;
  say(card.querySelector(".share"), percent(member.share));
  drawBar(card.querySelector(".bar"), member.share, { ...member, bytes: swarm.bytes },
    member.name || member.node);
  const place = [member.site, member.rack].filter(Boolean).join(" / ");
  const notes = [place, member.shunned ? "served wrong bytes: shunned" : "",
    member.connected ? "" : "connection lost", member.leases ? `${member.leases} reads of storage` : ""];
  say(card.querySelector(".note"), notes.filter(Boolean).join(" · "));
  card.classList.toggle("away", !member.connected || member.shunned);
}

const COLUMNS = ["", "place", "models", "cached", "free", "uploads", "release", "seen"];

function buildNode() {
  const row = make("tr");
  COLUMNS.forEach((head, n) => {
    const cell = make("td", n >= 2 && head !== "release" ? "n" : "", row);
    cell.dataset.head = head;
    if (n === 0) { make("span", "", cell); make("small", "", cell); }
  });
  return row;
}

function drawNode(row, node) {
  const place = [node.site, node.rack].filter(Boolean).join(" / ");
  const unreached = node.unreached ? " · nobody reaches it" : "";
  if (node.gone_s !== undefined) return drawGone(row, node, place);
  const seen = node.connected ? span(node.last_seen_s) : `lost ${span(node.last_seen_s)} ago`;
  const texts = ["", place || "–", String(node.models), bytes(node.cached_bytes),
    bytes(node.free_bytes), String(node.load), node.version, seen];
  say(row.cells[0].children[0], node.name || node.node);
  const address = node.name ? `${node.address} · ${node.node}` : node.address;
  say(row.cells[0].children[1], address + unreached);
  texts.forEach((text, n) => { if (n) say(row.cells[n], text); });
  row.classList.toggle("away", !node.connected || node.unreached);
}

function drawGone(row, node, place) {
  const texts = ["", place || "–", "–", "–", "–", "–", node.version, `${node.lost ? "lost" : "left"} ${span(node.gone_s)} ago`];
  say(row.cells[0].children[0], node.name || node.node);
  say(row.cells[0].children[1], node.name ? `${node.address} · ${node.node}` : node.address);
  texts.forEach((text, n) => { if (n) say(row.cells[n], text); });
  row.classList.add("away");
}

function rates(swarms) {
  const sum = (key) => swarms.reduce((total, swarm) => total + swarm[key], 0);
  const now = { at: performance.now(), peers: sum("bytes_peers"), origin: sum("bytes_origin") };
  samples.push(now);
  while (samples[0].at < now.at - RATE_MS) samples.shift();
  const passed = Math.max(1, now.at - samples[0].at) / 1000;
  const rate = (key) => Math.max(0, now[key] - samples[0][key]) / passed;
  return { peers: rate("peers"), origin: rate("origin") };
}

function drawTiles(nodes, swarms) {
  const rate = rates(swarms);
  const sum = (key) => nodes.reduce((total, node) => total + node[key], 0);
  const pulling = swarms.reduce((total, swarm) => total + swarm.wanting, 0);
  const tiles = [
    ["nodes", String(nodes.length)], ["models", String(swarms.length)],
    ["pulls running", String(pulling)], ["from peers", `${bytes(rate.peers)}/s`],
    ["from storage", `${bytes(rate.origin)}/s`],
    [`cached, ${bytes(sum("free_bytes"))} free`, bytes(sum("cached_bytes"))],
  ].map(([label, value], n) => ({ key: String(n), label, value }));
  const build = () => { const tile = make("div", "tile"); make("b", "", tile); make("span", "", tile); return tile; };
  reconcile($("tiles"), tiles, (row) => row.key, build, (tile, row) => {
    say(tile.children[0], row.value);
    say(tile.children[1], row.label);
  });
}

function drawStatus(status) {
  $("state").className = `pill ${status.ready ? "good" : "bad"}`;
  say($("state"), status.ready ? "ready" : "not ready");
  const parts = [status.origin || "no storage", `up ${span(status.uptime_s)}`, `release ${status.version}`];
  say($("about"), parts.join(" · "));
  trouble(status.reasons.join("; "));
}

function trouble(text) {
  $("trouble").hidden = !text;
  say($("trouble"), text);
}

function drawModels(swarms) {
  swarms.sort((a, b) => b.wanting - a.wanting || (named(a) < named(b) ? -1 : 1));
  reconcile($("models"), swarms, (swarm) => swarm.digest, buildModel, drawModel);
  $("models-empty").hidden = swarms.length > 0;
  say($("models-count"), swarms.length ? String(swarms.length) : "");
  more("models-more", MAX_ROWS, swarms.length, "models");
}

function drawNodes(nodes, gone) {
  const by = (node) => node.name || node.node;
  nodes.sort((a, b) => (by(a) < by(b) ? -1 : 1));
  const lost = gone.filter((node) => node.lost);
  const rows = [...lost, ...nodes, ...gone.filter((node) => !node.lost)]; // who looks for what is missing sees it first
  reconcile($("nodes").tBodies[0], rows, (node) => node.node, buildNode, drawNode);
  $("nodes").parentElement.hidden = rows.length === 0;
  $("nodes-empty").hidden = rows.length > 0;
  say($("nodes-count"), rows.length ? `${nodes.length}${lost.length ? `, ${lost.length} lost` : ""}` : "");
  say($("here"), location.origin);
  more("nodes-more", MAX_ROWS, rows.length, "nodes");
}

function drawDetail(swarm) {
  $("detail").hidden = !swarm;
  if (!swarm) return;
  say($("detail-title"), `${named(swarm)}: ${percent(swarm.share)} on ${plural(swarm.members.length + swarm.left_out, "node")}`);
  say($("detail-digest"), `blake3:${swarm.digest}`);
  const rank = (member) => (member.share < 1 ? 0 : 1);
  swarm.members.sort((a, b) => rank(a) - rank(b) || ((a.name || a.node) < (b.name || b.node) ? -1 : 1));
  reconcile($("members"), swarm.members, (member) => member.node, buildMember,
    (card, member) => drawMember(card, member, swarm));
  more("members-more", Math.min(MAX_ROWS, swarm.members.length), swarm.members.length + swarm.left_out, "nodes");
}

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
  if (!answer.ok && answer.status !== 404) throw new Error(`${path} answers ${answer.status}`);
  return answer.ok ? answer.json() : null;
}

async function look() {
  const digest = chosen();
  const [status, swarms, nodes] = await Promise.all([get("v1/status"), get("v1/swarms"), get("v1/nodes")]);
  const there = swarms.swarms.some((swarm) => swarm.digest === digest);
  const detail = there ? await get(`v1/swarm?digest=${digest}`) : null;
  drawStatus(status);
  drawTiles(nodes.nodes, swarms.swarms);
  drawModels(swarms.swarms);
  drawDetail(detail);
  drawNodes(nodes.nodes, nodes.gone);
  lastGood = Date.now();
  return swarms.swarms.some((swarm) => swarm.wanting > 0);
}

let timer = 0;
let looking = false;

async function turn() {
  clearTimeout(timer);
  if (document.hidden || looking) return; // a hidden tab costs the tracker nothing
  looking = true;
  let busy = true;
  try {
    busy = await look();
  } catch (error) {
    $("state").className = "pill bad";
    say($("state"), "no answer");
    const old = lastGood ? ` What you see is ${span((Date.now() - lastGood) / 1000)} old.` : "";
    trouble(`The tracker doesn't answer: ${error.message}.${old} Trying again.`);
  } finally {
    looking = false;
  }
  timer = setTimeout(turn, busy ? EVERY_MS : RESTING_MS);
}

document.addEventListener("visibilitychange", turn);
window.addEventListener("hashchange", turn);
$("detail-close").addEventListener("click", () => { location.hash = ""; });
turn();
