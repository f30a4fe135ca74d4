// Gateways and the replicas they know: health, versions, what runs, how long calls take.

import { get } from "/console/api.js";
import { el, tag } from "/console/dom.js";
import { replica } from "/console/replica.js";

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
