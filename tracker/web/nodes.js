"use strict";
// The table of nodes.

const nodes = (() => {
const { $, MAX_ROWS, buildLink, buildRow, drawLink, fill, make, more, reconcile, say, tone } = dom;
const { bytes, natural, nodeName, place, plural, span } = words;

const TOOLS = 6; // nodes from which on there is something to search
const COLUMNS = [["", "what"], ["", ""], ["place", ""], ["models", "n"], ["cached", "n"], ["free", "n"],
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
  return row;
}

function draw(row, { node, state }, chosen) {
  const gone = node.gone_s !== undefined, cells = row.cells;
  const texts = [place(node) || "–", ...(gone ? ["–", "–", "–", "–"]
    : [String(node.models), bytes(node.cached_bytes), bytes(node.free_bytes), String(node.load)]),
  node.version, gone ? "–" : `${span(node.last_seen_s)} ago`];
  drawLink(cells[0].firstChild, nodeName(node), `node=${node.node}`);
  cells[0].firstChild.setAttribute("aria-expanded", String(chosen === `node=${node.node}`));
  say(cells[0].lastChild, node.name ? `${node.address} · ${node.node}` : node.address);
  tone(cells[1].firstChild, state.look, state.word);
  texts.forEach((text, n) => fill(cells[n + 2], text));
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
