// The core's HTTP API. A token, where the core wants one, is asked for once and kept for this tab.

const KEY = "whippletree-token";

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token);
}

function headers(more) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function refusal(answer) {
  let error = { code: "unknown", message: `The core answered ${answer.status}.` };
  try {
    error = (await answer.json()).error ?? error;
  } catch {
    // Not the core's own words; the status has to do.
  }
  return new Refused(answer.status, error.code, error.message);
}

/** One call; its JSON answer. Throws Refused with the core's own words. */
export async function call(method, path, body, signal) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      signal,
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "away", "The development core does not answer. Is it still running?");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer.status === 204 ? null : answer.json();
}

export const get = (path, signal) => call("GET", path, undefined, signal);
export const post = (path, body = {}) => call("POST", path, body);

/** Everything of a paged answer: `name` is the list, `after` continues. */
export async function pages(path, name, after, signal, onPage) {
  let next = after;
  for (;;) {
    const mark = path.includes("?") ? "&" : "?";
    const page = await get(`${path}${mark}after=${next}&limit=1000`, signal);
    onPage(page[name]);
    if (page.after === undefined) return next;
    next = page.after;
  }
}

/**
 * Server-sent events through fetch, which can carry the token. Reconnects after the last id until `signal`
 * aborts; `onState` hears "live" and "lost".
 */
export async function follow(path, after, signal, onEvent, onState) {
  let last = after;
  while (!signal.aborted) {
    try {
      const answer = await fetch(path, { signal, headers: headers({ "Last-Event-ID": String(last) }) });
      if (!answer.ok) throw await refusal(answer);
      onState("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let buffer = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        buffer += value;
        let end;
        while ((end = buffer.indexOf("\n\n")) >= 0) {
          const event = parse(buffer.slice(0, end));
          buffer = buffer.slice(end + 2);
          if (event.id !== undefined) {
            last = event.id;
            onEvent(event);
          }
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status === 404) {
        onState("gone");
        return;
      }
    }
    onState("lost");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function parse(block) {
  const event = {};
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) event.id = Number(line.slice(4));
    else if (line.startsWith("event: ")) event.type = line.slice(7);
  }
  return event;
}
