// Which page is shown, and what all pages share.

import { Refused, setToken } from "/console/api.js";
import { agentsPage } from "/console/agents.js";
import { el } from "/console/dom.js";
import { fleetPage } from "/console/fleet.js";
import { sessionPage } from "/console/session.js";
import { sessionsPage } from "/console/sessions.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let shown = null;

/** What every page gets: where it draws, until when, and how it tells what it knows. */
class View {
  constructor() {
    this.controller = new AbortController();
    this.signal = this.controller.signal;
    this.root = el("div");
  }

  state(text) {
    if (!this.signal.aborted) connection.textContent = text;
  }

  go(path) {
    history.pushState(null, "", path);
    show();
  }

  /** Shows an error in place; a missing token is asked for. */
  fail(error, where = this.root) {
    if (error.name === "AbortError" || this.signal.aborted) return;
    if (error instanceof Refused && error.status === 401) {
      this.root.replaceChildren(tokenForm());
      return;
    }
    where.append(el("p", { class: "problem", role: "alert" }, error.message));
  }
}

function tokenForm() {
  const field = el("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const form = el(
    "form",
    { class: "row" },
    el("label", { for: "token" }, "This core wants a token (WHIPPLETREE_CORE_TOKEN):"),
    field,
    el("button", { class: "main" }, "Continue"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(field.value);
    show();
  });
  return form;
}

function page(path) {
  const session = /^\/sessions\/([^/]+)$/.exec(path);
  if (session) return ["Session", (view) => sessionPage(view, decodeURIComponent(session[1]))];
  if (path === "/agents") return ["Agents", agentsPage];
  if (path === "/fleet") return ["Fleet", fleetPage];
  return ["Sessions", sessionsPage];
}

function show() {
  if (shown) shown.controller.abort();
  const view = new View();
  shown = view;
  connection.textContent = "";
  const [title, draw] = page(location.pathname);
  document.title = `${title} – Whippletree`;
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(view.root);
  Promise.resolve(draw(view)).catch((error) => view.fail(error));
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-link]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  show();
  main.focus();
});
addEventListener("popstate", show);
// A page that a browser keeps for "back" would keep its stream, too, and there are only six connections.
addEventListener("pagehide", () => shown?.controller.abort());
addEventListener("pageshow", (event) => {
  if (event.persisted) show();
});
show();
