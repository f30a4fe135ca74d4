// The picture of one turn: effects as bars, a lane for each place that carried them out, time from left to right.

import { duration, el, pretty, svg } from "/console/dom.js";

const LANES = [
  ["model", "model-executor"],
  ["mcp", "mcp-pool"],
  ["sandbox", "sandbox-manager"],
  ["action", "Actions"],
  ["artifact", "artifacts"],
  ["agent", "agents"],
  ["core", "core"],
];
const NAMES = new Map(LANES);
const WIDTH = 1000;
const LEFT = 120;
const ROW = 18;
const BAR = 13;
const TOP = 18;
const MOST_BARS = 2000;

/** Bars in rows, so that no two of a row overlap; a row belongs to one lane. */
export function arrange(effects, now) {
  const lanes = new Map();
  for (const effect of effects) {
    const from = Date.parse(effect.startedAt);
    const to = effect.endedAt ? Math.max(Date.parse(effect.endedAt), from) : Math.max(now, from);
    const lane = NAMES.has(effect.runner) ? effect.runner : "core";
    if (!lanes.has(lane)) lanes.set(lane, []);
    const rows = lanes.get(lane);
    let row = rows.find((candidate) => candidate.until <= from);
    if (!row) rows.push((row = { until: 0, bars: [] }));
    row.until = Math.max(to, from + 1);
    row.bars.push({ effect, from, to });
  }
  return LANES.filter(([lane]) => lanes.has(lane)).map(([lane, name]) => ({ lane, name, rows: lanes.get(lane) }));
}

/** What an effect is called. */
export function effectName(effect) {
  const label = effect.label ?? {};
  if (effect.kind === "model") return label.compaction ? "model call (summary)" : "model call";
  return label.toolName ?? label.hook ?? label.agent?.id ?? effect.kind;
}

/** The drawing; `runs` are {time, text}: where a run began, lapsed or was joined. */
export function timeline(effects, runs, now, onChosen) {
  if (effects.length === 0) return el("p", { class: "note" }, "No effect yet.");
  const cut = effects.length > MOST_BARS;
  const shown = cut ? effects.slice(-MOST_BARS) : effects;
  const lanes = arrange(shown, now);
  const start = Math.min(...shown.map((effect) => Date.parse(effect.startedAt)));
  const end = Math.max(start + 1, ...lanes.flatMap(({ rows }) => rows.map((row) => row.until)));
  const x = (time) => LEFT + ((time - start) / (end - start)) * (WIDTH - LEFT - 8);
  const rows = lanes.reduce((sum, lane) => sum + lane.rows.length, 0);
  const height = TOP + rows * ROW + lanes.length * 6 + 4;
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`,
    role: "group",
    "aria-label": `Timeline of ${shown.length} effects over ${duration(end - start)}`,
  });
  for (let mark = 0; mark <= 4; mark += 1) {
    const time = start + ((end - start) * mark) / 4;
    picture.append(
      svg("line", { class: "grid", x1: x(time), x2: x(time), y1: TOP - 4, y2: height }),
      svg("text", { x: x(time), y: 11, "text-anchor": mark === 4 ? "end" : "start" }, duration(time - start)),
    );
  }
  for (const run of runs) {
    const time = Date.parse(run.time);
    if (time < start || time > end) continue;
    picture.append(
      svg("line", { class: "run", x1: x(time), x2: x(time), y1: TOP - 4, y2: height }, svg("title", {}, run.text)),
    );
  }
  let y = TOP;
  for (const { lane, name, rows: bars } of lanes) {
    picture.append(svg("text", { x: 0, y: y + BAR - 2 }, name));
    for (const row of bars) {
      for (const { effect, from, to } of row.bars) picture.append(bar(effect, lane, x(from), x(to), y, to - from, onChosen));
      y += ROW;
    }
    y += 6;
  }
  const box = el("div", { class: "timeline" }, picture);
  if (cut) box.prepend(el("p", { class: "note" }, `The last ${MOST_BARS} of ${effects.length} effects.`));
  box.append(legend(lanes));
  return box;
}

function bar(effect, lane, from, to, y, ms, onChosen) {
  const open = effect.status === "invoking" || effect.status === "pending";
  const failed = effect.failed === true;
  const state = effect.status === "uncertain" ? "uncertain" : open ? "open" : failed ? "failed" : "";
  const waits = effect.status === "pending" ? "waiting for an outcome" : effect.status;
  const attempts = effect.attempts > 1 ? `, handed out ${effect.attempts} times` : "";
  const text = `${effectName(effect)}: ${failed ? "failed" : waits}, ${duration(ms)}${attempts}`;
  const show = () => onChosen(effect, text);
  const group = svg(
    "g",
    { class: `bar ${lane} ${state}`, tabindex: "0", role: "button", "aria-label": text, onclick: show },
    svg("title", {}, text),
    svg("rect", { x: from, y, width: Math.max(3, to - from), height: BAR }),
  );
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      show();
    }
  });
  return group;
}

function legend(lanes) {
  const entries = lanes.map(({ lane, name }) => {
    const swatch = el("i");
    swatch.style.background = `var(--${lane === "agent" ? "core" : lane})`;
    return el("span", {}, swatch, name);
  });
  return el("div", { class: "legend" }, entries, el("span", {}, "dashed: under way or waiting, red frame: failed or uncertain"));
}

/** The documents of an effect, in a dialog. */
export function documents(effect, title) {
  const parts = [
    ["Request", effect.request],
    ["Outcome", effect.outcome],
    ["Error", effect.error],
  ].filter(([, value]) => value !== undefined && value !== null);
  const close = el("button", { type: "button" }, "Close");
  const dialog = el(
    "dialog",
    { "aria-label": title },
    el("div", { class: "row" }, el("strong", {}, title), close),
    el("p", { class: "note" }, `${effect.effectId}, segment ${effect.segment}, ${effect.runner}, ${effect.status}`),
    parts.map(([name, value]) => [el("h2", {}, name), el("pre", { tabindex: "0" }, pretty(value))]).flat(),
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
