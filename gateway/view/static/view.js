// What the gateway runs and what it knows of the services, asked for again and again. Read-only.

import { clock, duration, el, tag } from "/console/dom.js";
import { replica } from "/console/replica.js";

const EVERY_MS = 2000;
const main = document.getElementById("main");
const connection = document.getElementById("connection");

const took = (ms) => el("span", { class: "tight" }, duration(ms));

function done(counts) {
  return counts.map((one) => `${one.count} ${one.kind} ${one.outcome}`).join(", ") || "–";
}

function open(run) {
  const left = run.openCount - run.open.length;
  return [
    ...run.open.map((one) => el("div", {}, `${one.kind} `, tag(one.phase), ` ${duration(one.ageMs)} `, el("span", { class: "note" }, one.effectId))),
    left > 0 ? el("div", { class: "note" }, `and ${left} more`) : null,
    run.openCount === 0 ? "–" : null,
  ];
}

function table(name, heads, rows) {
  return el(
    "table",
    { "aria-label": name },
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, ...[cell].flat().filter((one) => one !== null)))))),
  );
}

function gateway(facts) {
  return [
    el("h1", {}, "Gateway ", tag(facts.draining ? "draining" : facts.connected ? "serving" : "lost")),
    el("p", { class: "note" }, `Version ${facts.version}. ${facts.connected ? "Connected to the core." : facts.problem ?? "There is no connection to the core."}`),
  ];
}

function current(view) {
  const left = view.runCount - view.runs.length;
  if (view.runCount === 0) return [el("h2", {}, "Runs"), el("p", { class: "note" }, "No run is held now.")];
  return [
    el("h2", {}, `Runs (${view.runCount})`),
    table("Current runs", ["Run", "Session", "Turn", "Phase", "Age", "Open effects", "Done"],
      view.runs.map((run) => [run.runId, run.sessionId, run.turnId, tag(run.phase), took(run.ageMs), open(run), done(run.done)])),
    left > 0 ? el("p", { class: "note" }, `and ${left} more`) : null,
  ];
}

function ended(runs) {
  if (runs.length === 0) return [];
  return [
    el("h2", {}, "Ended last"),
    table("Runs that ended", ["Run", "Session", "Turn", "Outcome", "Ended", "Took", "Effects"],
      runs.map((run) => [run.runId, run.sessionId, run.turnId, tag(run.outcome), clock(new Date(run.endedMs).toISOString()), took(run.tookMs), done(run.done)])),
  ];
}

function fleet(services) {
  const found = Object.entries(services);
  if (found.length === 0) return [el("h2", {}, "Services"), el("p", { class: "note" }, "They run in this process.")];
  return [
    el("h2", {}, "Services"),
    el("div", { class: "cards" }, found.flatMap(([name, service]) => service.replicas.length
      ? service.replicas.map((one) => replica(name, one))
      : [el("div", { class: "card" }, el("strong", {}, name), " ", tag("lost"))])),
  ];
}

async function show() {
  try {
    const answer = await fetch("/view");
    if (!answer.ok) throw new Error(`The gateway answered ${answer.status}.`);
    const view = await answer.json();
    main.replaceChildren(...[...gateway(view.gateway), ...current(view), ...ended(view.ended), ...fleet(view.services)].filter((one) => one !== null));
    connection.textContent = "live";
  } catch {
    connection.textContent = "connection lost, trying again";
  }
}

for (;;) {
  await show();
  await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
}
