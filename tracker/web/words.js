"use strict";
// How figures, times and names are said.

const words = (() => {
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

const ago = (seconds) => (seconds < 5 ? "now" : `${span(Math.max(0, seconds))} ago`);
// 99.96 % is not done: only what is complete reads "100 %".
const percent = (share) => (share >= 1 ? "100 %" : `${Math.floor(share * 1000) / 10} %`);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const modelName = (row) => row.label || (row.digest ? `blake3:${row.digest.slice(0, 12)}` : "a model");
const nodeName = (row) => row.name || row.node;
const place = (row) => [row.site, row.rack].filter(Boolean).join(" / ");

// "node-2" comes before "node-10".
const natural = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" }).compare;

// "1.2 GB/s, 3 min left"; nothing where nothing is known.
function pace(rate, missing) {
  if (!(rate > 0)) return "";
  return missing > 0 ? `${bytes(rate)}/s, ${span(missing / rate)} left` : `${bytes(rate)}/s`;
}

// As docs/cli.md has the exit codes.
const CAUSES = {
  1: "a bug", 4: "not allowed", 5: "no space", 6: "wrong bytes", 7: "storage doesn't answer",
  8: "nobody could be reached", 9: "took too long", 10: "conflict",
};

function ending(pull) {
  const share = pull.share > 0 && pull.share < 1 ? ` at ${percent(pull.share)}` : "";
  if (pull.end === "complete") return "complete";
  if (pull.end === "failed") return `failed${share}: ${CAUSES[pull.code] || "exit"} (${pull.code})`;
  if (pull.end === "lost") return `its node was lost${share}`;
  if (pull.end === "left") return `its node left${share}`;
  return `cancelled${share}`;
}

const isFailure = (pull) => pull.end === "failed" || pull.end === "lost";

const HAPPENED = {
  joined: "joined", left: "left", lost: "was lost: no sign of life", unreached: "can't be reached by others",
  shunned: "sent wrong bytes and is shunned", stopped: "read wrong bytes in storage: the model is stopped",
};

const happened = (event) => HAPPENED[event.kind] || event.kind;

return { bytes, span, ago, percent, plural, modelName, nodeName, place, natural, pace, ending, isFailure, happened };
})();
