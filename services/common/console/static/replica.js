// One replica of a service as a card: health, version, what runs, how long calls take.

import { duration, el, tag } from "/console/dom.js";

/** `one` is a replica as a gateway's port tells of it. */
export function replica(name, one) {
  const facts = [
    ["address", one.target],
    ["problem", one.problem],
    ["version", one.version],
    ["instance", one.instance],
    ["up since", one.since],
    ["calls of this gateway", one.inFlight],
    ["calls in flight", one.running],
    ...Object.entries(one.facts ?? {}),
    ...Object.entries(one.counts ?? {}),
  ].filter(([, value]) => value !== undefined && value !== null && value !== "");
  return el(
    "div",
    { class: "card" },
    el("div", { class: "row" }, el("strong", {}, name), tag(one.draining ? "draining" : one.serving ? "serving" : "lost")),
    el("dl", {}, facts.flatMap(([key, value]) => [el("dt", { class: "note" }, key), el("dd", {}, String(value))])),
    (one.latencies ?? []).map(histogram),
  );
}

function histogram(latency) {
  const buckets = latency.counts ?? [];
  const most = Math.max(1, ...buckets);
  const total = buckets.reduce((sum, count) => sum + count, 0);
  const bounds = latency.boundsMs ?? [];
  const text = `${latency.kind ?? "calls"}: ${total} calls`;
  return el(
    "figure",
    { "aria-label": text },
    el("figcaption", { class: "note" }, text),
    el("div", { class: "spark", role: "img", "aria-label": text }, buckets.map((count, index) => {
      const bar = el("i", { title: `${count} calls up to ${bounds[index] === undefined ? "more" : duration(bounds[index])}` });
      bar.style.height = `${(100 * count) / most}%`;
      return bar;
    })),
  );
}
