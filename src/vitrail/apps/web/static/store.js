// The state of the page. `asked` is what the visitor wants; `shown` is the one answer on the screen, whole or not at all.
import {ask} from "./api.js";
import {unpack} from "./numbers.js";

export const LOOK = {palette: "Inferno", opacity: 0.6, threshold: 0, smooth: true, zoom: 1, words: true};
const KEPT = 24;

/** What decides an answer, without the methods. */
export const baseKey = (asked) => JSON.stringify([asked.input, asked.model, asked.target, asked.preset]);

/** Read a map's numbers once. */
function opened(map) {
  return {...map, values: unpack(map.scores).values, fine: unpack(map.pixels)};
}

export class Store {
  constructor(first) {
    this.asked = first.asked;
    this.look = {...LOOK, ...first.look};
    this.panel = first.panel || "";
    this.about = null;
    this.examples = null;
    this.files = new Map();
    this.tray = [];
    this.answers = new Map();
    this.shown = null;
    this.pinned = null;
    this.pointed = null;
    this.progress = null;
    this.trouble = "";
    this.past = [];
    this.future = [];
    this.listeners = new Set();
    this.current = null;
  }

  listen(tell) {
    this.listeners.add(tell);
    return () => this.listeners.delete(tell);
  }

  changed() {
    for (const tell of this.listeners) tell();
  }

  /** Change how things look; no server is asked. */
  setLook(patch) {
    this.look = {...this.look, ...patch};
    this.changed();
  }

  point(cell) {
    if (this.pointed === cell) return;
    this.pointed = cell;
    this.changed();
  }

  /** Ask for something else; what was asked before can be taken back. */
  set(patch) {
    const next = {...this.asked, ...patch};
    if (JSON.stringify(next) === JSON.stringify(this.asked)) return;
    this.past.push(this.asked);
    this.future = [];
    this.go(next);
  }

  undo() {
    if (!this.past.length) return;
    this.future.push(this.asked);
    this.go(this.past.pop());
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.asked);
    this.go(this.future.pop());
  }

  go(asked) {
    this.asked = asked;
    this.pointed = null;
    this.run();
  }

  answer(key) {
    if (!this.answers.has(key)) {
      this.answers.set(key, {key, case: null, maps: new Map(), missing: new Map()});
      if (this.answers.size > KEPT) {
        const old = [...this.answers.keys()].find((one) => one !== key && one !== (this.shown && this.shown.key));
        this.answers.delete(old);
      }
    }
    return this.answers.get(key);
  }

  /** Fetch what is asked and not known. Answers to older questions are dropped. */
  async run() {
    if (this.current) this.current.abort();
    const mine = (this.current = new AbortController());
    const asked = this.asked;
    const found = this.answer(baseKey(asked));
    this.trouble = "";
    const missing = asked.methods.filter((name) => !found.maps.has(name) && !found.missing.has(name));
    if (found.case) this.shown = {...found, asked};
    this.progress = missing.length ? {share: 0, words: "asking the model"} : null;
    this.changed();
    if (!missing.length) return;
    try {
      const {input, model, target, preset} = asked;
      await ask("explain", {input, model, target, preset, methods: missing}, this.files, (event) => {
        if (mine !== this.current) return;
        this.take(found, asked, event);
      }, mine.signal);
    } catch (error) {
      if (mine !== this.current) return;
      if (error.name !== "AbortError") this.trouble = error.message || "the server cannot be reached.";
    }
    if (mine === this.current) {
      this.progress = null;
      this.changed();
    }
  }

  take(found, asked, event) {
    if (event.case) found.case = event.case;
    if (event.map) found.maps.set(event.map.method, opened(event.map));
    if (event.missing) found.missing.set(event.missing, event.why);
    if ("progress" in event) this.progress = {share: event.progress, words: event.words};
    if (found.case) this.shown = {...found, asked};
    this.changed();
  }

  stop() {
    if (this.current) this.current.abort();
    this.current = null;
    this.progress = null;
    this.changed();
  }

  /** Whether the screen answers what is asked. */
  get settled() {
    return Boolean(this.shown) && this.shown.key === baseKey(this.asked) && !this.progress;
  }

  addFile(file, thumbnail) {
    const input = `own:${this.files.size + 1}`;
    this.files.set(input, file);
    this.tray = [{input, name: file.name || input, thumbnail}, ...this.tray];
    return input;
  }
}

const SHORT = {model: "m", target: "c", methods: "x", preset: "v"};

/** The address of the state: everything but pictures from this device. */
export function toAddress(store) {
  const {asked, look, panel} = store;
  const parts = new URLSearchParams();
  parts.set("in", asked.input);
  for (const [name, short] of Object.entries(SHORT)) {
    const value = asked[name];
    if (value !== null && value !== undefined) parts.set(short, Array.isArray(value) ? value.join(",") : value);
  }
  for (const [name, usual] of Object.entries(LOOK)) if (look[name] !== usual) parts.set(name, look[name]);
  if (panel) parts.set("panel", panel);
  return `#${parts}`;
}

/** The state of an address; null where it names no input. */
export function fromAddress(address) {
  const parts = new URLSearchParams(address.replace(/^#/, ""));
  if (!parts.get("in")) return null;
  const asked = {input: parts.get("in"), preset: parts.get("v") || "recommended"};
  asked.model = parts.get("m");
  asked.target = /^\d+$/.test(parts.get("c") || "") ? Number(parts.get("c")) : null;
  asked.methods = (parts.get("x") || "").split(",").filter(Boolean);
  const look = {};
  for (const [name, usual] of Object.entries(LOOK)) {
    if (!parts.has(name)) continue;
    const text = parts.get(name);
    look[name] = typeof usual === "number" ? Number(text) || 0 : typeof usual === "boolean" ? text === "true" : text;
  }
  return {asked, look, panel: parts.get("panel") || ""};
}

/** Which kind of input this is. */
export const kindOf = (input) =>
  input.startsWith("text:") || input.startsWith("example:sentence") ? "text" : "image";
