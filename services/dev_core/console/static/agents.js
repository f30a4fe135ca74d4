// Agents: what there is, one's manifest, and a form that adds one.

import { call, get } from "/console/api.js";
import { clock, el, pretty } from "/console/dom.js";

const SMALLEST = { manifestSchemaVersion: 4, id: "hello", capabilities: [] };

export async function agentsPage(view) {
  const { agents } = await get("/v1/agents?limit=1000", view.signal);
  const head = ["Agent", "Manifest", "Actions", "Updated"].map((name) => el("th", { scope: "col" }, name));
  view.root.append(
    el("h1", {}, "Agents"),
    agents.length
      ? el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, agents.map((agent) => row(view, agent))))
      : el("p", { class: "note" }, "There is no agent yet."),
    form(view),
  );
}

function row(view, agent) {
  const shown = el("details", {}, el("summary", {}, agent.manifestHash.slice(0, 12)));
  shown.addEventListener("toggle", async () => {
    if (!shown.open || shown.childElementCount > 1) return;
    try {
      const { manifest } = await get(`/v1/agents/${encodeURIComponent(agent.id)}`, view.signal);
      shown.append(el("pre", {}, pretty(manifest)));
    } catch (error) {
      view.fail(error);
    }
  });
  return el(
    "tr",
    {},
    el("td", {}, agent.id),
    el("td", {}, shown),
    el("td", {}, agent.actions ? agent.actions.url : "–"),
    el("td", {}, clock(agent.updatedAt)),
  );
}

function form(view) {
  const text = el("textarea", { id: "manifest", rows: 12, spellcheck: "false" });
  text.value = JSON.stringify(SMALLEST, null, 2);
  const actions = el("input", { id: "actions", type: "url", size: 40, placeholder: "http://127.0.0.1:5000/actions" });
  const said = el("div");
  const made = el(
    "form",
    {},
    el("h2", {}, "Add or replace an agent"),
    el("p", { class: "note" }, "The manifest says who the agent is and what it may use; its id names it here."),
    el("label", { for: "manifest" }, "Manifest (JSON)"),
    text,
    el("div", { class: "row" }, el("label", { for: "actions" }, "URL of its Actions, if it has any"), actions),
    el("div", { class: "row" }, el("button", { class: "main" }, "Save")),
    said,
  );
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    said.replaceChildren();
    let manifest;
    try {
      manifest = JSON.parse(text.value);
    } catch (error) {
      said.append(el("p", { class: "problem", role: "alert" }, `This is not JSON: ${error.message}`));
      return;
    }
    try {
      const url = actions.value.trim();
      const body = url ? { manifest, actions: { url } } : { manifest };
      await call("PUT", `/v1/agents/${encodeURIComponent(String(manifest?.id ?? ""))}`, body);
      view.go("/agents");
    } catch (error) {
      view.fail(error, said);
    }
  });
  return made;
}
