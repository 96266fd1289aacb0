"use strict";
// The table of nodes.

const nodes = (() => {
const { $, MAX_ROWS, buildBar, buildLink, buildRow, drawLink, fill, make, more, reconcile, say, tone } = dom;
const { bytes, natural, nodeName, percent, place, plural, span } = words;

const TOOLS = 6; // nodes from which on there is something to search
const COLUMNS = [["", "what"], ["", ""], ["place", ""], ["models", "n"], ["cached", "there"], ["free", "n"],
  ["uploads", "n"], ["release", ""], ["seen", "n"]];

// A node's state in a word or two, and a rank: who looks for what is missing sees it first.
function judgeNode(node, failed) {
  if (node.gone_s !== undefined) {
    const word = `${node.lost ? "lost" : "left"} ${span(node.gone_s)} ago`;
    return node.lost ? { rank: 0, kind: "trouble", look: "bad", word } : { rank: 4, kind: "gone", look: "", word };
  }
  if (!node.connected) return { rank: 1, kind: "trouble", look: "bad", word: "connection lost" };
  if (node.unreached) return { rank: 1, kind: "trouble", look: "bad", word: "nobody reaches it" };
  const pulls = failed.get(node.node);
  if (pulls) return { rank: 2, kind: "trouble", look: "bad", word: plural(pulls.length, "failed pull") };
  return { rank: 3, kind: "up", look: "good", word: "up" };
}

function build() {
  const row = buildRow(COLUMNS);
  const name = buildLink(row.cells[0]);
  name.setAttribute("aria-controls", "detail");
  make("small", "", row.cells[0]);
  make("span", "chip", row.cells[1]);
  buildBar(row.cells[4]);
  make("span", "right", row.cells[4]);
  return row;
}

// How full the cache is: what the cluster keeps there, and the rest.
function drawRoom(cell, node) {
  const [bar, text] = cell.children, limit = node.gone_s === undefined ? node.limit_bytes : 0;
  const share = limit ? Math.min(1, node.cached_bytes / limit) : 0;
  const kept = limit ? Math.min(share, node.kept_bytes / limit) : 0;
  [kept, 0, share - kept].forEach((part, n) => { bar.children[n].style.width = `${100 * part}%`; });
  bar.hidden = !limit;
  bar.setAttribute("aria-valuenow", String(Math.floor(100 * share)));
  bar.setAttribute("aria-label", `${nodeName(node)}: ${percent(share)} of ${bytes(limit)}, ${bytes(node.kept_bytes || 0)} kept`);
  bar.title = limit ? `${percent(share)} of ${bytes(limit)}` : "";
  say(text, limit ? `${bytes(node.cached_bytes)} of ${bytes(limit)}` : "–");
}

function draw(row, { node, state }, chosen) {
  const gone = node.gone_s !== undefined, cells = row.cells;
  const texts = [place(node) || "–", ...(gone ? ["–", null, "–", "–"]
    : [String(node.models), null, bytes(node.free_bytes), String(node.load)]),
  node.version, gone ? "–" : `${span(node.last_seen_s)} ago`];
  drawLink(cells[0].firstChild, nodeName(node), `node=${node.node}`);
  cells[0].firstChild.setAttribute("aria-expanded", String(chosen === `node=${node.node}`));
  say(cells[0].lastChild, node.name ? `${node.address} · ${node.node}` : node.address);
  tone(cells[1].firstChild, state.look, state.word);
  texts.forEach((text, n) => { if (text !== null) fill(cells[n + 2], text); });
  drawRoom(cells[4], node);
  row.classList.toggle("away", gone || !node.connected);
  row.classList.toggle("open", chosen === `node=${node.node}`);
}

function drawNodes(nodes, gone, failed, chosen) {
  const rows = [...nodes, ...gone].map((node) => ({ node, state: judgeNode(node, failed) }));
  const text = $("nodes-search").value.trim().toLowerCase(), filter = $("nodes-filter").value;
  const fits = ({ node, state }) => (!filter || state.kind === filter) && (!text
    || [node.name, node.node, node.address, place(node), node.version].some((said) => said.toLowerCase().includes(text)));
  const found = rows.filter(fits).sort((a, b) => a.state.rank - b.state.rank || natural(nodeName(a.node), nodeName(b.node)));
  reconcile($("nodes").tBodies[0], found, ({ node }) => node.node, build, (row, one) => draw(row, one, chosen));
  $("nodes").parentElement.hidden = found.length === 0;
  $("nodes-tools").hidden = rows.length < TOOLS && found.length === rows.length;
  $("nodes-empty").hidden = rows.length > 0;
  $("nodes-none").hidden = rows.length === 0 || found.length > 0;
  const lost = gone.filter((node) => node.lost).length;
  const count = found.length < rows.length ? `${found.length} of ${rows.length}` : String(nodes.length);
  say($("nodes-count"), rows.length ? `${count}${lost ? `, ${lost} lost` : ""}` : "");
  say($("here"), location.origin);
  more("nodes-more", MAX_ROWS, found.length, "nodes: search for them");
}

function wireNodes(redraw) {
  for (const name of ["nodes-search", "nodes-filter"]) $(name).addEventListener("input", redraw);
}

return { judgeNode, drawNodes, wireNodes };
})();
