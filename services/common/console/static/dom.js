// Small helpers. Content of tools and models only ever becomes text nodes: nothing here parses HTML.

/** An element with attributes (`on…` are listeners) and children, of which strings become text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A status as a small label. */
export function tag(status) {
  return el("span", { class: `tag ${/^[a-z]+$/.test(status) ? status : ""}` }, status);
}

/** A JSON value as text for people. */
export function pretty(value) {
  if (typeof value === "string") return value;
  return JSON.stringify(value, null, 2) ?? "";
}

/** Milliseconds as people say them. */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** A time of day, with the date in the title. */
export function clock(text) {
  const time = new Date(text);
  return el("time", { datetime: text, title: time.toString() }, time.toLocaleTimeString());
}

/** Calls `work` at most once for calls that come close together; the last one counts. */
export function gathered(work, ms) {
  let timer = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      work();
    }, ms);
  };
}
