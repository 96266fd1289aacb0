"use strict";
// The last hour: ended pulls, events, charts.

const lastHour = (() => {
const { $, buildLink, buildRow, drawLink, fill, make, reconcile, say, tone } = dom;
const { ago, bytes, ending, happened, isFailure, modelName, nodeName, span } = words;

const FEW = 12; // rows at first
const KEPT_S = 3600;
const BROKEN_S = 90; // a longer time between two points is a gap in the line
const SVG = "http://www.w3.org/2000/svg";

// `pulls` and `events`: the newest first. `ahead_s`: by how much the tracker's clock is ahead of this one.
const hour = {
  epoch: "", last_event: 0, last_pull: 0, pulls: [], events: [], traffic: [], every_s: 20, ahead_s: 0,
};
let allPulls = false, allEvents = false;

const question = () => `v1/last-hour?events_after=${hour.last_event}&pulls_after=${hour.last_pull}`;

// Take in an answer; false: it is of another process of the tracker, and all must be asked for anew.
function takeIn(said) {
  if (said.epoch !== hour.epoch && hour.last_event + hour.last_pull > 0) {
    Object.assign(hour, { epoch: said.epoch, last_event: 0, last_pull: 0, pulls: [], events: [] });
    return false;
  }
  hour.epoch = said.epoch;
  hour.ahead_s = said.now - Date.now() / 1000;
  hour.pulls = joined(said.pulls, hour.pulls, hour.last_pull, said.now);
  hour.events = joined(said.events, hour.events, hour.last_event, said.now);
  hour.last_pull = said.last_pull;
  hour.last_event = said.last_event;
  hour.traffic = said.traffic;
  hour.every_s = said.every_s;
  return true;
}

function joined(fresh, old, last, now) {
  const rows = [...fresh.filter((row) => row.number > last), ...old];
  return rows.filter((row) => row.at > now - KEPT_S).slice(0, 2000);
}

const age = (row) => Math.max(0, Date.now() / 1000 + hour.ahead_s - row.at);

// Which nodes failed to get a model and haven't got it since: node ids by digest, digests by node id.
function failures() {
  const byModel = new Map(), byNode = new Map(), seen = new Set();
  for (const pull of hour.pulls) {
    const key = `${pull.node} ${pull.digest}`;
    if (seen.has(key)) continue; // the newest tells
    seen.add(key);
    if (!isFailure(pull)) continue;
    if (!byModel.has(pull.digest)) byModel.set(pull.digest, new Set());
    byModel.get(pull.digest).add(pull.node);
    if (!byNode.has(pull.node)) byNode.set(pull.node, []);
    byNode.get(pull.node).push(pull);
  }
  return { byModel, byNode };
}

const PULLS = [["", "what"], ["", "what"], ["", ""], ["size", "n"], ["time", "n"], ["rate", "n"],
  ["from peers", "n"], ["when", "n"]];

function buildPull() {
  const row = buildRow(PULLS);
  buildLink(row.cells[0]);
  buildLink(row.cells[1]);
  make("span", "", row.cells[2]);
  return row;
}

const TONES = { complete: "good", failed: "bad", lost: "bad" };

function drawPull(row, pull) {
  const came = pull.bytes_peers + pull.bytes_origin;
  drawLink(row.cells[0].firstChild, nodeName(pull), `node=${pull.node}`);
  drawLink(row.cells[1].firstChild, modelName(pull), pull.digest ? `model=${pull.digest}` : "");
  tone(row.cells[2].firstChild, TONES[pull.end] || "", ending(pull));
  fill(row.cells[3], pull.bytes ? bytes(pull.bytes) : "");
  fill(row.cells[4], span(pull.seconds));
  fill(row.cells[5], came && pull.seconds ? `${bytes(came / pull.seconds)}/s` : "");
  fill(row.cells[6], came ? `${Math.round((100 * pull.bytes_peers) / came)} %` : "");
  say(row.cells[7], ago(age(pull)));
  row.cells[7].title = new Date(pull.at * 1000).toLocaleString();
}

function buildEvent() {
  const row = make("li");
  for (const name of ["when", "what"]) make("span", name, row);
  buildLink(row.children[1]);
  make("span", "", row.children[1]);
  buildLink(row.children[1]);
  return row;
}

function drawEvent(row, event) {
  const what = row.children[1].children;
  say(row.children[0], ago(age(event)));
  row.children[0].title = new Date(event.at * 1000).toLocaleString();
  drawLink(what[0], nodeName(event), `node=${event.node}`);
  say(what[1], ` ${happened(event)} `);
  what[2].hidden = !event.digest;
  if (event.digest) drawLink(what[2], modelName(event), `model=${event.digest}`);
  row.classList.toggle("bad", !["joined", "left"].includes(event.kind));
}

function drawEvents(list, events) {
  reconcile(list, events, (event) => event.number, buildEvent, drawEvent);
}

// A short list in the panel: how pulls of a model, or on a node, ended.
function drawEndings(list, pulls, nameOf, opens) {
  const build = () => {
    const row = make("li");
    for (const name of ["when", "what"]) make("span", name, row);
    buildLink(row.children[1]);
    make("span", "", row.children[1]);
    return row;
  };
  reconcile(list, pulls.slice(0, 50), (pull) => pull.number, build, (row, pull) => {
    say(row.children[0], ago(age(pull)));
    drawLink(row.children[1].children[0], nameOf(pull), opens(pull));
    say(row.children[1].children[1], ` ${ending(pull)}, ${span(pull.seconds)}`);
    row.classList.toggle("bad", isFailure(pull));
  });
}

function showMore(button, shown, all) {
  button.hidden = all <= FEW;
  say(button, shown < all ? `Show all ${all}` : "Show fewer");
  button.setAttribute("aria-expanded", String(shown >= all));
}

function drawHour() {
  const wish = $("pulls-filter").value;
  const pulls = wish === "failed" ? hour.pulls.filter(isFailure) : hour.pulls;
  const failed = hour.pulls.filter(isFailure).length;
  const shown = allPulls ? pulls.length : Math.min(FEW, pulls.length);
  reconcile($("pulls").tBodies[0], pulls.slice(0, shown), (pull) => pull.number, buildPull, drawPull);
  $("pulls").parentElement.hidden = pulls.length === 0;
  $("pulls-empty").hidden = pulls.length > 0;
  say($("pulls-empty"), wish === "failed" ? "No pull failed in the last hour." : "No pull ended in the last hour.");
  say($("pulls-count"), hour.pulls.length ? `${hour.pulls.length}${failed ? `, ${failed} failed` : ""}` : "");
  showMore($("pulls-all"), shown, pulls.length);
  const some = allEvents ? hour.events : hour.events.slice(0, FEW);
  drawEvents($("events"), some);
  $("events-empty").hidden = hour.events.length > 0;
  say($("events-count"), hour.events.length ? String(hour.events.length) : "");
  showMore($("events-all"), some.length, hour.events.length);
  drawCharts();
}

function wireHour(redraw) {
  $("pulls-filter").addEventListener("change", redraw);
  $("pulls-all").addEventListener("click", () => { allPulls = !allPulls; redraw(); });
  $("events-all").addEventListener("click", () => { allEvents = !allEvents; redraw(); });
}

// -- charts: points are [age in seconds, bytes/s from peers, from storage, pulls, nodes] --

const CHARTS = [
  { title: "Traffic", lines: [["peers", 1, "from peers"], ["origin", 2, "from storage"]], text: (n) => `${bytes(n)}/s` },
  { title: "Pulls running", lines: [["pulls", 3, ""]], text: String },
  { title: "Nodes", lines: [["nodes", 4, ""]], text: String },
];

function buildChart() {
  const figure = make("figure", "chart");
  const caption = make("figcaption", "", figure);
  for (const name of ["title", "now"]) make("span", name, caption);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 3600 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  figure.append(svg);
  const axis = make("p", "axis", figure);
  for (const text of ["1 h ago", "", "now"]) say(make("span", "", axis), text);
  return figure;
}

function drawChart(figure, chart) {
  const most = Math.max(1, ...hour.traffic.flatMap((point) => chart.lines.map((line) => point[line[1]])));
  const last = hour.traffic[hour.traffic.length - 1];
  const now = chart.lines.map(([, index, word]) => `${chart.text(last ? last[index] : 0)}${word ? ` ${word}` : ""}`);
  const [caption, svg, axis] = figure.children;
  say(caption.children[0], chart.title);
  say(caption.children[1], last ? now.join(", ") : "from its first minute on");
  say(axis.children[1], last ? `most: ${chart.text(Math.max(0, ...hour.traffic.flatMap((p) => chart.lines.map((l) => p[l[1]]))))}` : "");
  svg.setAttribute("aria-label", `${chart.title} in the last hour: now ${now.join(", ")}, ${axis.children[1].textContent}`);
  chart.lines.forEach(([name, index], n) => {
    const line = svg.children[n] || svg.appendChild(document.createElementNS(SVG, "path"));
    line.setAttribute("class", name);
    line.setAttribute("d", path(index, most));
  });
}

function path(index, most) {
  let before = Infinity;
  return hour.traffic.map((point) => {
    const pen = before - point[0] > BROKEN_S ? "M" : "L";
    before = point[0];
    return `${pen}${3600 - point[0]} ${(96 - (92 * point[index]) / most).toFixed(1)}`;
  }).join("");
}

function drawCharts() {
  reconcile($("charts"), CHARTS, (chart) => chart.title, buildChart, drawChart);
}

return { hour, question, takeIn, failures, drawEvents, drawEndings, drawHour, wireHour };
})();
