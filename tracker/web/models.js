"use strict";
// The list of models: cards while they are few, a compact table when they are many.

const models = (() => {
const { $, MAX_ROWS, buildBar, buildLink, buildRow, drawBar, drawLink, fill, make, more, reconcile, say, tone } = dom;
const { observe, quietFor, rateOf } = rates;
const { bytes, modelName, natural, pace, percent, plural } = words;

const COMPACT = 50; // models from which on they are rows of a table
const TOOLS = 6; // models from which on there is something to search
const STALLED_MS = 30000;
const COLUMNS = [["", "what"], ["", ""], ["size", "n"], ["copies", "n"], ["complete on", "n"], ["", "there"], ["", "n"],
  ["from storage", "n"]];

function watch(swarms, at) {
  for (const swarm of swarms) {
    observe(`peers ${swarm.digest}`, swarm.moved_peers, at);
    observe(`origin ${swarm.digest}`, swarm.moved_origin, at);
    observe(swarm.digest, swarm.moved_peers + swarm.moved_origin, at);
  }
}

// Bytes a second to all of its nodes: as seen here, or on average since their pulls began.
const rateOfModel = (swarm) => (swarm.pulling ? rateOf(swarm.digest) ?? swarm.rate : 0);

// Its state in a word or two, and a rank: what needs somebody comes first.
function judge(swarm, failed) {
  if (swarm.stopped_at_run !== null) return { rank: 0, kind: "trouble", look: "bad", word: "stopped" };
  const nodes = failed.get(swarm.digest);
  if (nodes) return { rank: 1, kind: "trouble", look: "bad", word: `failed on ${plural(nodes.size, "node")}` };
  if (swarm.shunned) return { rank: 1, kind: "trouble", look: "bad", word: `${plural(swarm.shunned, "node")} shunned` };
  const quiet = swarm.pulling ? quietFor(swarm.digest) : 0;
  if (quiet > STALLED_MS) return { rank: 1, kind: "trouble", look: "bad", word: `nothing came for ${Math.round(quiet / 1000)} s` };
  const pulling = swarm.pulling || swarm.wanting;
  if (lacks(swarm)) return { rank: 2, kind: "trouble", look: "bad", word: copies(swarm) };
  if (pulling) return { rank: 2, kind: "pulling", look: "busy", word: `${pulling} pulling` };
  if (swarm.complete === swarm.members) return { rank: 3, kind: "complete", look: "good", word: "complete" };
  return { rank: 3, kind: "partial", look: "", word: "in part" };
}

const ORDERS = {
  state: (a, b) => a.state.rank - b.state.rank,
  name: () => 0,
  size: (a, b) => b.swarm.bytes - a.swarm.bytes,
  copies: (a, b) => a.swarm.complete - b.swarm.complete,
};

function wished(rows, kept) {
  const text = $("models-search").value.trim().toLowerCase().replace(/^blake3:/, "");
  const filter = $("models-filter").value, order = ORDERS[$("models-order").value];
  const fits = (row) => (!filter || row.state.kind === filter)
    && (!text || row.swarm.label.toLowerCase().includes(text) || row.swarm.digest.startsWith(text));
  const found = rows.filter(fits).sort((a, b) => order(a, b) || natural(modelName(a.swarm), modelName(b.swarm)));
  const place = found.findIndex((row) => row.swarm.digest === kept);
  if (place >= MAX_ROWS) found.splice(MAX_ROWS - 1, 0, ...found.splice(place, 1)); // the open one is always shown
  return found;
}

function clearWishes() {
  $("models-search").value = "";
  $("models-filter").value = "";
}

function facts(swarm) {
  const size = swarm.bytes ? `${bytes(swarm.bytes)} · ` : "";
  const flow = pace(rateOfModel(swarm), swarm.missing_bytes);
  return `${size}${copies(swarm)} · complete on ${swarm.complete} of ${plural(swarm.members, "node")}${flow ? ` · ${flow}` : ""}`;
}

// Copies beside those that are wanted, of a model that is kept; else what its parts make together.
const copies = ({ keep, share, members }) => {
  if (keep) return `${keep.have}/${keep.target} copies`;
  const count = Math.round(100 * share * members) / 100;
  return `${count} ${count === 1 ? "copy" : "copies"}`;
};
const lacks = ({ keep }) => keep !== null && (keep.have < keep.target || !keep.target);

const alpha = (swarm) => (swarm.alpha === null ? "" : ` (${swarm.alpha.toFixed(2)} ×)`);
const opened = (row, digest, chosen) => row.setAttribute("aria-expanded", String(chosen === `model=${digest}`));

function buildCard(row) {
  const card = buildLink(null, "model");
  for (const name of ["name", "right", "facts", "right sources"]) make("span", name, card);
  const state = make("span", "chip");
  card.insertBefore(state, card.children[1]);
  card.insertBefore(buildBar(), card.children[3]);
  card.dataset.opens = `model=${row.swarm.digest}`;
  card.setAttribute("aria-controls", "detail");
  return card;
}

function drawCard(card, { swarm, state, name }, chosen) {
  say(card.querySelector(".name"), name);
  tone(card.children[1], state.look, state.word);
  card.children[1].hidden = state.kind === "complete";
  say(card.querySelector(".right"), percent(swarm.share));
  drawShare(card.querySelector(".bar"), swarm);
  say(card.querySelector(".facts"), facts(swarm));
  say(card.querySelector(".sources"),
    `storage ${bytes(swarm.bytes_origin)}${alpha(swarm)} · peers ${bytes(swarm.bytes_peers)}`);
  opened(card, swarm.digest, chosen);
}

function drawShare(bar, swarm) {
  drawBar(bar, swarm.share, { ...swarm, bytes: swarm.bytes * swarm.members }, `${modelName(swarm)}, mean over its nodes`);
}

function buildTableRow(row) {
  const line = buildRow(COLUMNS);
  line.className = "model";
  const name = buildLink(line.cells[0], "name");
  name.setAttribute("aria-controls", "detail");
  name.dataset.opens = `model=${row.swarm.digest}`;
  make("span", "chip", line.cells[1]);
  buildBar(line.cells[5]);
  make("span", "right", line.cells[5]);
  return line;
}

function drawTableRow(line, { swarm, state, name }, chosen) {
  const cells = line.cells;
  drawLink(cells[0].firstChild, name, `model=${swarm.digest}`);
  tone(cells[1].firstChild, state.look, state.word);
  fill(cells[2], swarm.bytes ? bytes(swarm.bytes) : "");
  say(cells[3], copies(swarm));
  say(cells[4], `${swarm.complete} of ${swarm.members}`);
  drawShare(cells[5].firstChild, swarm);
  say(cells[5].lastChild, percent(swarm.share));
  fill(cells[6], pace(rateOfModel(swarm), swarm.missing_bytes));
  say(cells[7], `${bytes(swarm.bytes_origin)}${alpha(swarm)}`);
  line.classList.toggle("open", chosen === `model=${swarm.digest}`);
  opened(cells[0].firstChild, swarm.digest, chosen);
}

// Names for people: versions that share one, such as after a tag has moved, have their digests beside it.
function namer(swarms) {
  const seen = new Map(), key = (swarm) => swarm.label.toLowerCase();
  for (const swarm of swarms) seen.set(key(swarm), (seen.get(key(swarm)) || 0) + 1);
  return (swarm) => (swarm.label && seen.get(key(swarm)) > 1 ? `${modelName(swarm)} (${swarm.digest.slice(0, 12)})` : modelName(swarm));
}

function drawModels(swarms, failed, chosen) {
  const named = namer(swarms);
  const rows = swarms.map((swarm) => ({ swarm, state: judge(swarm, failed), name: named(swarm) }));
  const found = wished(rows, chosen.replace("model=", ""));
  const compact = swarms.length >= COMPACT, key = (row) => row.swarm.digest;
  reconcile($("models"), compact ? [] : found, key, buildCard, (card, row) => drawCard(card, row, chosen));
  reconcile($("models-table").tBodies[0], compact ? found : [], key, buildTableRow,
    (line, row) => drawTableRow(line, row, chosen));
  $("models-table").parentElement.hidden = !compact || found.length === 0;
  $("models-tools").hidden = swarms.length < TOOLS && found.length === swarms.length;
  $("models-empty").hidden = swarms.length > 0;
  $("models-none").hidden = swarms.length === 0 || found.length > 0;
  const trouble = rows.filter((row) => row.state.kind === "trouble").length;
  const count = found.length < swarms.length ? `${found.length} of ${swarms.length}` : String(swarms.length);
  say($("models-count"), swarms.length ? `${count}${trouble ? `, ${trouble} in trouble` : ""}` : "");
  more("models-more", MAX_ROWS, found.length, "models: search for them");
}

// The row of a model, if it is shown.
function rowOf(digest) {
  const inside = [...$("models").children, ...$("models-table").tBodies[0].children];
  return inside.find((row) => row.dataset.key === digest);
}

function wireModels(redraw) {
  for (const name of ["models-search", "models-filter", "models-order"]) $(name).addEventListener("input", redraw);
}

return { watch, rateOfModel, judge, clearWishes, drawModels, rowOf, wireModels };
})();
