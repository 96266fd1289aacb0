"use strict";
// How quickly something grows, seen over several looks at its total.
// Members tell figures at heartbeats, so totals move in steps: a rate is taken from step to step.

const rates = (() => {
const WINDOW_MS = 20000; // four heartbeats
const QUIET_MS = 12000; // without a step for two heartbeats and a little: nothing flows

const kept = new Map(); // by key: the steps, the oldest first, and when it was looked at

function observe(key, total, at) {
  let one = kept.get(key);
  if (!one || total < one.steps[one.steps.length - 1].total) { // a total that shrank is that of another process
    one = { steps: [{ at, total }], looked: at, whole: false };
    kept.set(key, one);
  }
  one.looked = at;
  const last = one.steps[one.steps.length - 1];
  if (total > last.total) one.steps.push({ at, total });
  // The first look is no step: when that total was reached isn't known.
  if (!one.whole && one.steps.length > 2) { one.steps.shift(); one.whole = true; }
  while (one.steps.length > 2 && one.steps[0].at < at - WINDOW_MS) one.steps.shift();
}

// Units a second; null while it isn't known.
function rateOf(key) {
  const one = kept.get(key);
  if (!one) return null;
  const first = one.steps[0], last = one.steps[one.steps.length - 1];
  if (one.looked - last.at > QUIET_MS) return 0;
  if (one.steps.length < 3) return null;
  return ((last.total - first.total) * 1000) / (last.at - first.at);
}

// Milliseconds since it grew, or since it was first looked at.
function quietFor(key) {
  const one = kept.get(key);
  return one ? one.looked - one.steps[one.steps.length - 1].at : 0;
}

function forgetOld(at) {
  for (const [key, one] of kept) if (one.looked < at - WINDOW_MS) kept.delete(key);
}

const forgetAll = () => kept.clear();

return { observe, rateOf, quietFor, forgetOld, forgetAll };
})();
