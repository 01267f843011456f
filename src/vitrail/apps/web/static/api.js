// The server: one session, requests that carry an id, answers as a stream of events, inputs handed in again when needed.

const state = {session: null};
let counter = 0;

/** What the server answers instead of a result: a sentence. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function refusal(answer) {
  let said = `the server answered ${answer.status}.`;
  try {
    said = (await answer.json()).error || said;
  } catch {
    // the sentence above stays
  }
  return new Refused(said, answer.status);
}

/** A JSON file of the server. */
export async function get(route, signal) {
  const answer = await fetch(`api/${route}`, {signal});
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

async function session() {
  if (!state.session) {
    state.session = fetch("api/session", {method: "POST"}).then(async (answer) => {
      if (!answer.ok) throw await refusal(answer);
      return (await answer.json()).session;
    });
    state.session.catch(() => { state.session = null; });
  }
  return state.session;
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const TRIES = 6;

/** Send a request; a lost session is renewed, a busy server asked again after a while. */
async function post(route, makeBody, signal) {
  for (let attempt = 1; ; attempt++) {
    const name = await session();
    const {body, type} = await makeBody(name);
    const headers = {"x-vitrail-session": name, "content-type": type};
    const answer = await fetch(`api/${route}`, {method: "POST", body, headers, signal});
    if (answer.ok) return answer;
    if (attempt >= TRIES || ![401, 429].includes(answer.status)) throw await refusal(answer);
    if (answer.status === 401) state.session = null;
    else await pause(400 * attempt);
    if (signal && signal.aborted) throw new DOMException("", "AbortError");
  }
}

const kept = new Map();

/** The server's id of an input: an example, a text or a file that the page holds; handed in once for each session. */
async function inputId(input, files, name, signal) {
  if (input.startsWith("example:")) return input;
  const key = `${name} ${input}`;
  if (!kept.has(key)) {
    const text = input.startsWith("text:") ? input.slice(5) : null;
    const file = files.get(input);
    if (text === null && !file) throw new Refused("this picture is not on this device: choose it again.", 410);
    const body = text === null ? file : JSON.stringify({text});
    const type = text === null ? "application/octet-stream" : "application/json";
    const answer = await post("inputs", () => ({body, type}), signal);
    kept.set(key, (await answer.json()).input);
  }
  return kept.get(key);
}

/**
 * Ask the server, and hand each event to `take`.
 * @param {string} route which action
 * @param {{input: string}} asked the fields of the request
 * @param {Map<string, Blob>} files pictures of this page by input
 */
export async function ask(route, asked, files, take, signal) {
  for (let attempt = 1; ; attempt++) {
    const id = `r${++counter}-${Date.now().toString(36)}`;
    const answer = await post(route, async (name) => {
      const input = await inputId(asked.input, files, name, signal);
      return {body: JSON.stringify({...asked, id, input}), type: "application/json"};
    }, signal);
    let again = false;
    for await (const event of lines(answer)) {
      if (event.id !== id) continue;
      if (event.error && event.error.includes("hand it in again") && attempt === 1) {
        kept.clear();
        again = true;
      } else if (event.busy && attempt < TRIES) {
        await pause(400 * attempt);
        again = true;
      } else if (event.error) throw new Refused(event.error, 422);
      else take(event);
    }
    if (!again) return;
  }
}

async function* lines(answer) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    rest += decoder.decode(value || new Uint8Array(), {stream: !done});
    const parts = rest.split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
    if (done) return;
  }
}
