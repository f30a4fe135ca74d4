// Gateways and the replicas they know: health, versions, what runs, how long calls take.

import { get } from "/console/api.js";
import { duration, el, tag } from "/console/dom.js";

const EVERY_MS = 2000;

export async function fleetPage(view) {
  view.root.append(el("h1", {}, "Fleet"));
  const body = el("div");
  view.root.append(body);
  while (!view.signal.aborted) {
    try {
      const fleet = await get("/v1/fleet", view.signal);
      body.replaceChildren(...draw(fleet));
      view.state("live");
    } catch (error) {
      if (error.status === 401) throw error;
      if (view.signal.aborted) return;
      view.state("connection lost, trying again");
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

function draw(fleet) {
  if (fleet.gateways.length === 0) {
    return [el("p", { class: "note" }, "No gateway is named in WHIPPLETREE_FLEET_URLS, so nothing is known here.")];
  }
  return fleet.gateways.flatMap(gateway);
}

function gateway(found) {
  const head = el("h2", {}, `Gateway ${found.url} `, tag(found.reachable ? "serving" : "lost"));
  if (!found.reachable) return [head, el("p", { class: "problem" }, found.reason ?? "It does not answer.")];
  const runs = found.fleet.runs ?? [];
  const services = Object.entries(found.fleet.services ?? {});
  return [
    head,
    el("p", { class: "note" }, `${runs.length} ${runs.length === 1 ? "run" : "runs"} held.`),
    el("div", { class: "cards" }, services.flatMap(([name, service]) => (service.replicas ?? []).map((one) => replica(name, one)))),
  ];
}

function replica(name, one) {
  const facts = [
    ["address", one.target],
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
