// One session: the conversation with its tool calls, the picture of each turn, and what a person can do.

import { follow, get, pages, post } from "/console/api.js";
import { clock, el, gathered, pretty, tag } from "/console/dom.js";
import { documents, timeline } from "/console/timeline.js";

const OPEN = new Set(["runnable", "running", "waiting", "paused", "uncertain"]);
const RUN_EVENTS = "run.started,run.lapsed,effect.rejoined,turn.yielded,effect.uncertain";
const REFRESH_MS = 60;

export async function sessionPage(view, id) {
  const page = new SessionPage(view, id);
  await page.open();
}

class SessionPage {
  constructor(view, id) {
    this.view = view;
    this.path = `/v1/sessions/${encodeURIComponent(id)}`;
    this.turns = new Map();
    this.calls = new Map();
    this.after = 0;
    this.runsAfter = 0;
    this.title = el("h1", {}, id);
    this.facts = el("p", { class: "row" });
    this.log = el("div", { role: "log", "aria-label": "Conversation", "aria-live": "polite" });
    this.asks = el("div", { "aria-live": "assertive" });
    this.said = el("div");
  }

  async open() {
    this.session = await get(this.path, this.view.signal);
    const composer = this.composer();
    this.view.root.append(this.title, this.facts);
    // A long conversation is drawn once, not once for each of its pages.
    await this.load();
    this.view.root.append(this.log, this.asks, this.said, composer);
    this.atEnd(true);
    const refresh = gathered(() => this.refresh(), REFRESH_MS);
    follow(`${this.path}/events`, this.session.lastSeq, this.view.signal, refresh, (state) => {
      const words = { live: "live", lost: "connection lost, trying again", gone: "this session was deleted" };
      this.view.state(words[state]);
      if (state === "live") refresh();
    });
  }

  async load() {
    await pages(`${this.path}/items`, "items", this.after, this.view.signal, (items) => this.add(items)).then(
      (after) => (this.after = after),
    );
    await pages(`${this.path}/log?types=${RUN_EVENTS}`, "events", this.runsAfter, this.view.signal, (events) => {
      for (const event of events) this.turn(event.turnId).runs.push(event);
    }).then((after) => (this.runsAfter = after));
    this.state();
    const last = [...this.turns.values()].at(-1);
    if (last && !last.touched) last.details.open = true;
    if (last && last.details.open) await this.draw(last);
  }

  async refresh() {
    if (this.refreshing) {
      this.again = true;
      return;
    }
    this.refreshing = true;
    try {
      do {
        this.again = false;
        const end = this.atEnd();
        this.session = await get(this.path, this.view.signal);
        await this.load();
        this.atEnd(end);
      } while (this.again);
    } catch (error) {
      this.view.fail(error, this.said);
    } finally {
      this.refreshing = false;
    }
  }

  /** Whether the end of the page is in sight; with true, brings it there. */
  atEnd(go) {
    const root = document.documentElement;
    if (go) root.scrollTop = root.scrollHeight;
    return root.scrollHeight - root.scrollTop - root.clientHeight < 80;
  }

  // Facts and what is asked

  state() {
    const session = this.session;
    const cancel = el("button", { type: "button", class: "bad" }, "Cancel the turn");
    cancel.addEventListener("click", () => this.act("cancel"));
    this.facts.replaceChildren(
      ...[
        tag(session.status),
        el("span", { class: "note" }, `agent ${session.agentId}`),
        OPEN.has(session.status) ? cancel : null,
      ].filter(Boolean),
    );
    this.asks.replaceChildren();
    if (session.hint && session.status === "uncertain") {
      const words =
        "A call may have run and nobody knows its outcome, so it is not tried again. Look in the timeline which one, " +
        "find out what really happened, then cancel the turn and say the next thing.";
      this.asks.append(el("div", { class: "ask" }, words));
    }
    for (const interaction of session.interactions ?? []) this.asks.append(this.ask(interaction));
    this.send.disabled = OPEN.has(session.status);
    this.hint.textContent = OPEN.has(session.status) ? "A turn is under way." : "";
  }

  ask(interaction) {
    const box = el(
      "div",
      { class: "ask", role: "group", "aria-label": "The agent asks" },
      el("p", {}, el("strong", {}, interaction.toolName ?? "The agent"), " asks:"),
      el("p", { class: "text" }, pretty(interaction.prompt ?? "")),
      interaction.args === undefined ? null : el("pre", {}, pretty(interaction.args)),
    );
    if (interaction.kind === "approval") {
      const answer = (approved) => () => this.act("approve", { interactionId: interaction.id, approved });
      box.append(
        el(
          "div",
          { class: "row" },
          el("button", { type: "button", class: "main", onclick: answer(true) }, "Approve"),
          el("button", { type: "button", class: "bad", onclick: answer(false) }, "Reject"),
        ),
      );
      return box;
    }
    const field = el("input", { "aria-label": "Your answer", required: true });
    const form = el("form", { class: "row" }, field, el("button", { class: "main" }, "Answer"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.act("respond", { interactionId: interaction.id, value: valueOf(field.value) });
    });
    box.append(form);
    return box;
  }

  composer() {
    const text = el("textarea", { rows: 2, "aria-label": "Message", placeholder: "Say something. Enter sends, Shift+Enter makes a new line." });
    this.send = el("button", { class: "main" }, "Send");
    this.hint = el("span", { class: "note" });
    const form = el("form", { class: "composer" }, text, el("div", { class: "row" }, this.send, this.hint));
    const submit = async () => {
      if (!text.value.trim() || this.send.disabled) return;
      if (await this.act("messages", { text: text.value })) text.value = "";
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      }
    });
    return form;
  }

  async act(what, body) {
    this.said.replaceChildren();
    try {
      await post(`${this.path}/${what}`, body);
      await this.refresh();
      return true;
    } catch (error) {
      this.view.fail(error, this.said);
      return false;
    }
  }

  // The conversation

  turn(id) {
    const known = this.turns.get(id);
    if (known) return known;
    const turn = { id, runs: [], effects: [], body: el("div", { class: "body" }), head: el("div", { class: "head" }) };
    turn.picture = el("div");
    turn.details = el("details", {}, el("summary", {}, "Timeline"), turn.picture);
    turn.details.addEventListener("toggle", () => {
      turn.touched = true;
      if (turn.details.open && !turn.drawn) this.draw(turn).catch((error) => this.view.fail(error, turn.picture));
    });
    turn.status = el("span");
    turn.head.append(el("strong", {}, `Turn ${this.turns.size + 1}`), turn.status);
    this.log.append(el("section", { class: "turn", "aria-label": `Turn ${this.turns.size + 1}` }, turn.head, turn.body, el("div", { class: "body" }, turn.details)));
    this.turns.set(id, turn);
    return turn;
  }

  async draw(turn) {
    turn.drawn = true;
    const effects = [];
    await pages(`${this.path}/effects?documents=0&turnId=${encodeURIComponent(turn.id)}`, "effects", 0, this.view.signal, (page) => effects.push(...page));
    const runs = turn.runs.map((event) => ({ time: event.time, text: runText(event) }));
    const list = el("ol", { class: "note" }, turn.runs.map((event) => el("li", {}, clock(event.time), " ", runText(event))));
    turn.picture.replaceChildren(
      timeline(effects, runs, Date.now(), (effect, title) => this.documents(effect, title)),
      el("details", {}, el("summary", {}, `Runs and replays (${turn.runs.length})`), list),
    );
  }

  async documents(effect, title) {
    try {
      documents(await get(`${this.path}/effects/${encodeURIComponent(effect.effectId)}`, this.view.signal), title);
    } catch (error) {
      this.view.fail(error, this.said);
    }
  }

  add(items) {
    const parts = new Map();
    for (const item of items) {
      const turn = this.turn(item.turnId);
      const made = this.item(turn, item);
      if (!made) continue;
      if (!parts.has(turn)) parts.set(turn, document.createDocumentFragment());
      parts.get(turn).append(made);
    }
    for (const [turn, part] of parts) turn.body.append(part);
  }

  item(turn, item) {
    switch (item.type) {
      case "message":
        return message(item);
      case "reasoning":
        return el("div", { class: "item" }, el("div", { class: "reasoning text" }, item.text ?? ""));
      case "tool_call":
        return this.toolCall(item);
      case "tool_result":
        return this.toolResult(item);
      case "stage_result":
        return stageResult(item);
      case "answer":
        return el("div", { class: "item note" }, answerText(item));
      case "model_failed":
        return el("p", { class: "problem" }, `The model call failed: ${problemText(item.error)}`);
      case "uncertain":
        return el("p", { class: "problem" }, `Nobody knows whether this ran: ${item.effectId}. ${item.message ?? ""}`);
      case "paused":
        turn.status.replaceChildren(tag("paused"));
        return null;
      case "completed":
      case "failed":
      case "cancelled":
        turn.status.replaceChildren(tag(item.type));
        // An agent has said its output already; a workflow says it here.
        if (item.type === "completed" && this.session.kind === "workflow") return flowOutput(item.output);
        return item.type === "failed" ? el("p", { class: "problem" }, `The turn failed: ${problemText(item.error ?? item)}`) : null;
      default:
        return null;
    }
  }

  toolCall(item) {
    const state = el("span", {}, tag("running"));
    const details = el(
      "details",
      { class: "call" },
      el("summary", {}, el("strong", {}, item.toolName ?? "tool"), " ", el("code", {}, brief(item.args)), " ", state),
    );
    later(details, () => [el("h2", {}, "Input"), el("pre", { tabindex: "0" }, pretty(item.args))]);
    const who = agentOf(item);
    this.calls.set(`${item.turnId} ${item.callId}`, { details, state });
    return el("div", { class: "item" }, who, details);
  }

  toolResult(item) {
    const call = this.calls.get(`${item.turnId} ${item.callId}`);
    const failed = item.result?.kind === "failed" || item.result?.status === "failed";
    const outcome = failed ? "failed" : item.result?.kind === "interaction-required" ? "paused" : "completed";
    const show = () => [el("h2", {}, "Output"), el("pre", { tabindex: "0" }, pretty(outputOf(item.result)))];
    if (call) {
      call.state.replaceChildren(tag(outcome));
      later(call.details, show);
      return null;
    }
    const details = el("details", { class: "call" }, el("summary", {}, el("strong", {}, item.toolName ?? "tool"), " ", tag(outcome)));
    later(details, show);
    return el("div", { class: "item" }, agentOf(item), details);
  }
}

/** Fills a `details` when it is first opened: large outputs cost nothing until somebody looks. */
function later(details, make) {
  const fill = () => {
    if (!details.open) return;
    details.removeEventListener("toggle", fill);
    details.append(...make());
  };
  details.addEventListener("toggle", fill);
  fill();
}

function message(item) {
  const user = item.role === "user";
  const parts = (item.content ?? []).map((part) => {
    if (part.type === "text") return el("div", { class: "text" }, part.text ?? "");
    if (part.type === "media") return el("div", { class: "text note" }, `[${part.mediaType}: ${brief(part.reference)}]`);
    return el("pre", {}, pretty(part.value ?? part));
  });
  return el("div", { class: `item ${user ? "user" : "assistant"}` }, el("div", { class: "who" }, user ? "You" : "Agent"), agentOf(item), parts);
}

function agentOf(item) {
  return item.agent ? el("div", { class: "who" }, `agent ${item.agent.id ?? ""}`) : null;
}

/** A workflow's stage: what it is, where it stands, what it gave. */
function stageResult(item) {
  const round = item.iterations && item.iterations !== "-" ? ` (round ${item.iterations})` : "";
  const given = item.result?.__nylorunAgentTurn === 1 ? item.result.output : outputOf(item.result);
  return el(
    "details",
    { class: "call" },
    el("summary", {}, el("strong", {}, item.kind === "verify" ? "fn" : item.kind), " ", el("code", {}, item.path ?? ""), round, " ", brief(given)),
    el("pre", {}, typeof given === "string" ? given : pretty(given)),
  );
}

function flowOutput(output) {
  const shown = typeof output === "string" ? el("div", { class: "text" }, output) : el("pre", {}, pretty(output ?? null));
  return el("div", { class: "item assistant" }, el("div", { class: "who" }, "Workflow"), shown);
}

function outputOf(result) {
  if (result === null || typeof result !== "object") return result;
  if (result.kind === "completed" || result.status === "completed") return result.output;
  return result;
}

function brief(value) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return text.length > 120 ? `${text.slice(0, 120)}…` : text;
}

function problemText(error) {
  if (error === null || typeof error !== "object") return String(error);
  const code = error.code ? `${error.code}: ` : "";
  return `${code}${error.message ?? pretty(error)}`;
}

function answerText(item) {
  if (item.kind === "approve") return item.approved ? "You approved." : "You rejected.";
  return `You answered: ${brief(item.value)}`;
}

function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function runText(event) {
  const p = event.payload ?? {};
  switch (event.type) {
    case "run.started":
      return `Run of segment ${p.segment}, epoch ${p.epoch}` + (p.replayed ? `, ${p.replayed} outcomes replayed` : "");
    case "run.lapsed":
      return `The harness went silent; epoch ${p.epoch} ended`;
    case "effect.rejoined":
      return `Joined an effect that may still run: ${p.effectId}`;
    case "turn.yielded":
      return `Rolled over to segment ${p.segment}`;
    default:
      return `${event.type}: ${p.effectId ?? ""} ${p.message ?? ""}`;
  }
}
