"use strict";
// The panel beside the page: one model with its nodes, or one node with its models.
// `#model=DIGEST` and `#node=ID` in the address name what it shows.

const panel = (() => {
const { $, MAX_ROWS, buildBar, buildLink, drawBar, drawLink, make, more, reconcile, say, tone } = dom;
const { drawEndings, drawEvents, hour } = lastHour;
const { judge, rateOfModel } = models;
const { judgeNode } = nodes;
const { observe, rateOf } = rates;
const { bytes, modelName, natural, nodeName, pace, percent, place, plural, span } = words;

// What the address names: "model=...", "node=..." or "".
const chosen = () => (/^#(model=[0-9a-f]{64}|node=[0-9a-f]{16})$/.exec(location.hash) || [, ""])[1];

function pathOf(what) {
  const [kind, id] = what.split("=");
  if (kind === "model") return `v1/swarm?digest=${id}`;
  return kind === "node" ? `v1/node?id=${id}` : "";
}

function watchDetail(detail, at) {
  for (const one of detail.members || detail.held) {
    observe(`${one.digest || detail.digest} ${one.node || detail.node}`, one.bytes_peers + one.bytes_origin, at);
  }
}

function buildMember() {
  const card = make("div", "member");
  const line = make("p", "", card);
  buildLink(line, "who");
  make("span", "share", line);
  buildBar(card);
  make("span", "note", card);
  return card;
}

// One node of a model, or one model of a node. `size`: bytes of the model.
function drawMember(card, { name, opens, member, size, digest, node, extra }) {
  const [line, bar, note] = card.children;
  drawLink(line.firstChild, name, opens);
  say(line.lastChild, percent(member.share));
  drawBar(bar, member.share, { ...member, bytes: size }, name);
  const pulls = member.pulling_s !== null;
  const rate = pulls ? rateOf(`${digest} ${node}`) ?? member.rate : 0;
  const flow = pulls ? pace(rate, size * (1 - member.share)) || "nothing comes" : "";
  const notes = [...extra, member.shunned ? "sent wrong bytes: shunned" : "",
    pulls ? `pulling for ${span(member.pulling_s)}` : "", flow,
    member.leases ? `${plural(member.leases, "read")} of storage` : ""];
  say(note, notes.filter(Boolean).join(" · "));
  card.classList.toggle("bad", member.shunned || extra.bad === true);
}

const rank = (member) => (member.shunned ? 0 : member.pulling_s !== null ? 1 : member.share < 1 ? 2 : 3);

function facts(rows) {
  const list = $("detail-facts");
  const build = () => { const row = make("div"); make("dt", "", row); make("dd", "", row); return row; };
  reconcile(list, rows.filter(([, text]) => text), ([name]) => name, build, (row, [name, text]) => {
    say(row.children[0], name);
    say(row.children[1], text);
  });
}

function head(title, sub, state, advice) {
  say($("detail-title"), title);
  say($("detail-digest"), sub);
  tone($("detail-state"), state.look, state.word);
  $("detail-advice").hidden = !advice;
  say($("detail-advice"), advice);
}

function lists(pulls, nameOf, opens, events) {
  $("detail-pulls-part").hidden = pulls.length === 0;
  drawEndings($("detail-pulls"), pulls, nameOf, opens);
  $("detail-events-part").hidden = events.length === 0;
  drawEvents($("detail-events"), events.slice(0, 50));
}

function members(title, rows, left_out, what) {
  $("detail-members-title").hidden = rows.length === 0;
  say($("detail-members-title"), title);
  $("detail-legend").hidden = rows.length === 0;
  reconcile($("members"), rows, (row) => row.opens, buildMember, drawMember);
  more("members-more", Math.min(MAX_ROWS, rows.length), rows.length + left_out, what);
}

const ADVICE = {
  stopped: "The bytes in storage are not those of the manifest: push it again with --repair.",
  failed: "Why: p2pcache history --cluster --failed, on any node.",
};

function adviceFor(state) {
  return state.word === "stopped" ? ADVICE.stopped : state.word.startsWith("failed") || state.word.endsWith("failed pull")
    || state.word.endsWith("failed pulls") ? ADVICE.failed : "";
}

function drawModel(swarm, failed) {
  const state = judge(swarm, failed.byModel), count = swarm.members.length + swarm.left_out;
  head(`${modelName(swarm)}: ${percent(swarm.share)} on ${plural(count, "node")}`, `blake3:${swarm.digest}`, state, adviceFor(state));
  facts([
    ["Size", swarm.bytes ? bytes(swarm.bytes) : ""],
    ["Complete on", `${swarm.complete} of ${plural(count, "node")}`],
    ["Pulling", swarm.pulling ? plural(swarm.pulling, "node") : ""],
    ["Rate", pace(rateOfModel(swarm), swarm.missing_bytes)],
    ["Read from storage", `${bytes(swarm.bytes_origin)}${swarm.alpha === null ? "" : ` (${swarm.alpha.toFixed(2)} × its size)`}`],
    ["From peers", bytes(swarm.bytes_peers)],
  ]);
  const rows = swarm.members.map((member) => {
    const extra = [place(member), member.connected ? "" : "connection lost"];
    extra.bad = !member.connected;
    return { name: nodeName(member), opens: `node=${member.node}`, member, size: swarm.bytes, digest: swarm.digest, node: member.node, extra };
  });
  rows.sort((a, b) => rank(a.member) - rank(b.member) || natural(a.name, b.name));
  members("Nodes", rows, swarm.left_out, "nodes");
  const mine = (row) => row.digest === swarm.digest;
  lists(hour.pulls.filter(mine), nodeName, (pull) => `node=${pull.node}`, hour.events.filter(mine));
}

function drawNode(node, failed) {
  const state = judgeNode(node, failed.byNode), gone = node.gone_s !== undefined;
  head(nodeName(node), `${node.node} at ${node.address}`, state, adviceFor(state));
  const room = node.cached_bytes + node.free_bytes;
  facts([
    ["Place", place(node)], ["Release", node.version],
    ["Disk", gone ? "" : `${bytes(node.cached_bytes)} cached, ${bytes(node.free_bytes)} free${room ? ` (${percent(node.cached_bytes / room)} used by the cache)` : ""}`],
    ["Uploads", gone ? "" : String(node.load)], ["Heard of", gone ? "" : `${span(node.last_seen_s)} ago`],
  ]);
  const rows = (node.held || []).map((model) => {
    const extra = [bytes(model.bytes), model.stopped_at_run === null ? "" : "stopped: wrong bytes in storage"];
    extra.bad = model.stopped_at_run !== null;
    return { name: modelName(model), opens: `model=${model.digest}`, member: model, size: model.bytes, digest: model.digest, node: node.node, extra };
  });
  rows.sort((a, b) => rank(a.member) - rank(b.member) || natural(a.name, b.name));
  members("Models", rows, node.left_out || 0, "models");
  const mine = (row) => row.node === node.node;
  lists(hour.pulls.filter(mine), modelName, (pull) => (pull.digest ? `model=${pull.digest}` : ""), hour.events.filter(mine));
}

// What isn't there any more: its name is known from the last hour, if at all.
function drawAbsent(what) {
  const [kind, id] = what.split("=");
  const mine = (row) => (kind === "model" ? row.digest === id : row.node === id);
  const pulls = hour.pulls.filter(mine), events = hour.events.filter(mine), known = pulls[0] || events[0];
  const name = kind === "model" ? modelName({ digest: id, ...known }) : nodeName({ node: id, ...known });
  head(name, kind === "model" ? `blake3:${id}` : id, { look: "", word: "not here" },
    kind === "model" ? "No node has or wants this model now." : "No node with this id is connected now.");
  facts([]);
  members("", [], 0, "");
  lists(pulls, kind === "model" ? nodeName : modelName, (pull) => (kind === "model" ? `node=${pull.node}` : `model=${pull.digest}`), events);
}

// `detail`: the answer of `pathOf(what)`, or null; `gone`: nodes that were members.
function drawPanel(what, detail, gone, failed) {
  $("detail").hidden = !what;
  document.body.classList.toggle("with-panel", Boolean(what));
  if (!what) return;
  const [kind, id] = what.split("=");
  const departed = kind === "node" ? gone.find((node) => node.node === id) : null;
  if (kind === "model" && detail) drawModel(detail, failed);
  else if (kind === "node" && (detail || departed)) drawNode(detail || departed, failed);
  else drawAbsent(what);
}

return { chosen, pathOf, watchDetail, drawPanel };
})();
