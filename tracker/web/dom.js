"use strict";
// Elements of the page. Whatever members say of themselves becomes text nodes, never markup.

const dom = (() => {
const MAX_ROWS = 500; // more make a phone slow, and nobody reads them

const $ = (id) => document.getElementById(id);

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
    const id = String(key(row));
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
  const bar = make("span", "bar", parent);
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

// A cell of a table; "–" stands for nothing to say.
function fill(cell, text) {
  say(cell, text || "–");
  cell.classList.toggle("none", !text || text === "–");
}

function tone(element, name, word) {
  element.className = `chip ${name}`;
  say(element, word);
}

// A row of a table. On a narrow screen each cell shows its head, so it is kept with it.
function buildRow(columns) {
  const row = make("tr");
  for (const [head, className] of columns) make("td", className, row).dataset.head = head;
  return row;
}

// A button that opens a model or a node beside the page.
function buildLink(parent, className) {
  const button = make("button", `link ${className || ""}`, parent);
  button.type = "button";
  button.addEventListener("click", () => {
    if (button.dataset.opens) document.dispatchEvent(new CustomEvent("open-panel", { detail: button.dataset.opens }));
  });
  return button;
}

function drawLink(button, text, opens) {
  say(button, text);
  button.dataset.opens = opens || "";
  button.disabled = !opens;
}

return { $, MAX_ROWS, make, say, fill, reconcile, more, buildBar, drawBar, tone, buildRow, buildLink, drawLink };
})();
