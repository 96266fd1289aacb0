"use strict";
// The tracker's page: polls its read-only JSON and shows it.

(() => {
const { $, make, reconcile, say } = dom;
const { drawHour, failures, question, takeIn, wireHour } = lastHour;
const { clearWishes, drawModels, rowOf, watch, wireModels } = models;
const { drawNodes, wireNodes } = nodes;
const { chosen, drawPanel, pathOf, watchDetail } = panel;
const { forgetAll, forgetOld, rateOf } = rates;
const { bytes, span } = words;

const EVERY_MS = 2000; // while a pull runs; a resting cluster is looked at less often
const RESTING_MS = 5000; // as often as members tell something
const ANSWER_MS = 6000;

const seen = { status: null, swarms: [], nodes: [], gone: [], detail: null, of: "", failed: failures() };
let lastGood = 0, slowAt = -Infinity, timer = 0, looking = false, again = false;
let goTo = chosen(); // a row to scroll to when it is there
let opener = ""; // what was opened by a click: the focus goes back there

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
  if (!answer.ok && answer.status !== 404) throw new Error(`${path.split("?")[0]} answers ${answer.status}`);
  return answer.ok ? answer.json() : null;
}

// Models and what is open at each look; the rest no more often than members tell.
async function look() {
  const what = chosen(), began = performance.now(), slow = began - slowAt >= RESTING_MS - 500;
  const asked = [get("v1/swarms")];
  if (slow) asked.push(get("v1/status"), get("v1/nodes"), get(question()));
  const [swarms, status, nodes, hour] = await Promise.all(asked);
  if (slow) {
    if (seen.status && seen.status.epoch !== status.epoch) forgetAll();
    Object.assign(seen, { status, nodes: nodes.nodes, gone: nodes.gone });
    if (!takeIn(hour)) takeIn(await get(question()));
    slowAt = began;
    seen.failed = failures();
  }
  const id = what.split("=")[1]; // only who is there is asked for
  const there = swarms.swarms.some((swarm) => swarm.digest === id) || seen.nodes.some((node) => node.node === id);
  const detail = there ? await get(pathOf(what)) : null;
  const at = performance.now();
  Object.assign(seen, { swarms: swarms.swarms, detail, of: what });
  watch(seen.swarms, at);
  if (detail) watchDetail(detail, at);
  forgetOld(at);
  lastGood = Date.now();
  draw();
  return seen.swarms.some((swarm) => swarm.wanting > 0 || swarm.pulling > 0);
}

function draw() {
  if (!seen.status) return;
  const what = chosen();
  drawStatus(seen.status);
  drawTiles();
  drawModels(seen.swarms, seen.failed.byModel, what);
  drawNodes(seen.nodes, seen.gone, seen.failed.byNode, what);
  drawHour();
  if (what === seen.of) drawPanel(what, seen.detail, seen.gone, seen.failed);
  scroll(what);
}

function scroll(what) {
  if (!goTo || goTo !== what || what !== seen.of) return;
  const id = what.split("=")[1];
  if (what.startsWith("model=") && !rowOf(id) && seen.swarms.some((swarm) => swarm.digest === id)) {
    clearWishes(); // a link leads to its model, whatever was searched for
    drawModels(seen.swarms, seen.failed.byModel, what);
  }
  const row = rowOf(id) || [...$("nodes").tBodies[0].rows].find((one) => one.dataset.key === id);
  if (row) row.scrollIntoView({ block: opener === what ? "nearest" : "center" });
  if (opener === what) $("detail-title").focus({ preventScroll: true });
  $("detail").scrollTop = 0;
  goTo = "";
}

function drawTiles() {
  const latest = lastHour.hour.traffic[lastHour.hour.traffic.length - 1]; // until rates are seen here
  const total = (kind, index) => {
    const found = seen.swarms.map((swarm) => rateOf(`${kind} ${swarm.digest}`));
    return found.every((rate) => rate === null) && latest ? latest[index] : found.reduce((sum, rate) => sum + (rate || 0), 0);
  };
  const sum = (rows, key) => rows.reduce((so_far, row) => so_far + row[key], 0);
  const lost = seen.gone.filter((node) => node.lost).length;
  const tiles = [
    [lost ? `nodes, ${lost} lost` : "nodes", String(seen.nodes.length)], ["models", String(seen.swarms.length)],
    ["pulls running", String(seen.swarms.reduce((all, swarm) => all + Math.max(swarm.pulling, swarm.wanting), 0))],
    ["from peers", `${bytes(total("peers", 1))}/s`], ["from storage", `${bytes(total("origin", 2))}/s`],
    [`cached, ${bytes(sum(seen.nodes, "free_bytes"))} free`, bytes(sum(seen.nodes, "cached_bytes"))],
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
  trouble([...status.reasons, ...status.warnings].join("; "));
}

function trouble(text) {
  $("trouble").hidden = !text;
  say($("trouble"), text);
}

async function turn() {
  clearTimeout(timer);
  if (looking) { again = true; return; }
  if (document.hidden) return; // a hidden tab costs the tracker nothing
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
  const wait = again ? 0 : busy ? EVERY_MS : RESTING_MS;
  again = false;
  timer = setTimeout(turn, wait);
}

function arrive() {
  goTo = chosen();
  if (!goTo) draw();
  turn();
}

function close() {
  const id = chosen().split("=")[1];
  history.pushState(null, "", location.pathname + location.search); // an empty hash would scroll to the top
  drawPanel("", null, [], seen.failed);
  arrive();
  const row = rowOf(id) || [...$("nodes").tBodies[0].rows].find((one) => one.dataset.key === id);
  const button = row && (row.matches("button") ? row : row.querySelector("button"));
  if (button) button.focus({ preventScroll: true });
}

document.addEventListener("open-panel", (event) => {
  if (event.detail === chosen()) { close(); return; }
  opener = event.detail;
  location.hash = event.detail;
});
document.addEventListener("visibilitychange", turn);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen() && !event.target.matches("input, select")) close();
});
for (const jump of document.querySelectorAll("[data-jump]")) {
  jump.addEventListener("click", () => $(jump.dataset.jump).scrollIntoView());
}
window.addEventListener("hashchange", arrive);
window.addEventListener("popstate", arrive);
$("detail-close").addEventListener("click", close);
wireModels(draw);
wireNodes(draw);
wireHour(draw);
turn();
})();
