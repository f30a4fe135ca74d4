// The list of sessions, and the way to a new one.

import { get, post } from "/console/api.js";
import { clock, el, tag } from "/console/dom.js";

const PAGE = 50;

export async function sessionsPage(view) {
  const [agents, first] = await Promise.all([
    get("/v1/agents?limit=1000", view.signal),
    get(`/v1/sessions?limit=${PAGE}`, view.signal),
  ]);
  const body = el("tbody");
  const more = el("button", { type: "button", hidden: true }, "Older sessions");
  let before;
  const add = (page) => {
    body.append(...page.sessions.map(row));
    before = page.before;
    more.hidden = before === undefined;
  };
  more.addEventListener("click", async () => {
    try {
      add(await get(`/v1/sessions?limit=${PAGE}&before=${before}`, view.signal));
    } catch (error) {
      view.fail(error);
    }
  });
  view.root.append(el("h1", {}, "Sessions"), start(view, agents.agents));
  if (first.sessions.length === 0) {
    view.root.append(el("p", { class: "note" }, "There is no session yet."));
    return;
  }
  add(first);
  const head = ["Session", "Agent", "Status", "Updated"].map((name) => el("th", { scope: "col" }, name));
  view.root.append(el("table", {}, el("thead", {}, el("tr", {}, head)), body), more);
}

function row(session) {
  const link = el("a", { href: `/sessions/${encodeURIComponent(session.id)}`, "data-link": true }, session.id);
  return el(
    "tr",
    {},
    el("td", {}, link),
    el("td", {}, session.agentId),
    el("td", {}, tag(session.status)),
    el("td", {}, clock(session.updatedAt)),
  );
}

function start(view, agents) {
  if (agents.length === 0) {
    return el(
      "p",
      {},
      "No agent is known. ",
      el("a", { href: "/agents", "data-link": true }, "Add one"),
      ", then come back here.",
    );
  }
  const choice = el("select", { id: "agent" }, agents.map((agent) => el("option", { value: agent.id }, agent.id)));
  const form = el(
    "form",
    { class: "row" },
    el("label", { for: "agent" }, "New session with"),
    choice,
    el("button", { class: "main" }, "Start"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const made = await post("/v1/sessions", { agentId: choice.value });
      view.go(`/sessions/${encodeURIComponent(made.id)}`);
    } catch (error) {
      view.fail(error);
    }
  });
  return form;
}
