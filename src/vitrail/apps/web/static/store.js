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

/** Put an event of an explanation where it belongs. */
function keep(found, event) {
  if (event.case) found.case = event.case;
  if (event.map) found.maps.set(event.map.method, opened(event.map));
  if (event.missing) found.missing.set(event.missing, event.why);
}

export class Store {
  constructor(first) {
    this.asked = first.asked;
    this.look = {...LOOK, ...first.look};
    this.panel = first.panel || "";
    this.view = first.view || {};
    this.here = first.here || {};
    this.about = null;
    this.examples = null;
    this.files = new Map();
    this.tray = [];
    this.texts = [];
    this.answers = new Map();
    this.shown = null;
    this.pinned = null;
    this.pinning = null;
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

  /** A choice inside a panel, kept in the address. */
  setView(name, value) {
    this.view = {...this.view, [name]: value};
    this.changed();
  }

  /** A choice inside a panel that belongs to this input alone; `undoable` ones can be taken back. */
  setHere(name, value, undoable) {
    if (undoable) this.remember();
    this.here = {...this.here, [name]: value};
    this.changed();
  }

  remember() {
    this.past.push({asked: this.asked, here: this.here});
    this.future = [];
  }

  /** Ask for something else; what was asked before can be taken back. */
  set(patch, here = {}) {
    const next = {...this.asked, ...patch};
    if (JSON.stringify(next) === JSON.stringify(this.asked)) return;
    this.remember();
    this.go(next, next.input === this.asked.input ? this.here : here);
  }

  undo() {
    if (!this.past.length) return;
    this.future.push({asked: this.asked, here: this.here});
    const {asked, here} = this.past.pop();
    this.go(asked, here);
  }

  redo() {
    if (!this.future.length) return;
    this.past.push({asked: this.asked, here: this.here});
    const {asked, here} = this.future.pop();
    this.go(asked, here);
  }

  go(asked, here) {
    const same = JSON.stringify(asked) === JSON.stringify(this.asked);
    this.asked = asked;
    this.here = here;
    if (same) {
      this.changed();
      return;
    }
    this.pointed = null;
    this.run();
  }

  /** Keep what is shown beside whatever comes next. */
  pin() {
    this.pinned = {...this.shown, maps: new Map(this.shown.maps)};
    this.changed();
  }

  unpin() {
    if (this.pinning) this.pinning.abort();
    this.pinned = null;
    this.changed();
  }

  /** Pin what an address names: asked for once, beside what is shown. */
  async pinFrom(asked) {
    const mine = (this.pinning = new AbortController());
    const found = {key: baseKey(asked), asked, case: null, maps: new Map(), missing: new Map()};
    const {input, model, target, preset, methods} = asked;
    try {
      await ask("explain", {input, model, target, preset, methods}, this.files, (event) => keep(found, event), mine.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.trouble = `what was pinned cannot be shown: ${error.message}`;
    }
    if (mine.signal.aborted) return;
    if (found.case) this.pinned = found;
    this.changed();
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
    this.keepText();
    if (this.current) this.current.abort();
    const mine = (this.current = new AbortController());
    const asked = this.asked;
    const found = this.answer(baseKey(asked));
    this.trouble = "";
    const asking = found.case && found.case.task === "asking"; // it has no maps of methods
    const missing = asking ? [] : asked.methods.filter((name) => !found.maps.has(name) && !found.missing.has(name));
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
    keep(found, event);
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

  /** Texts that were asked about stay in the tray, the latest first. */
  keepText() {
    const {input} = this.asked;
    const text = input.startsWith("text:") ? input.slice(5) : "";
    if (text && !this.texts.includes(text)) this.texts = [text, ...this.texts].slice(0, KEPT);
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

function askedParts(asked) {
  const parts = new URLSearchParams();
  parts.set("in", asked.input);
  for (const [name, short] of Object.entries(SHORT)) {
    const value = asked[name];
    if (value !== null && value !== undefined) parts.set(short, Array.isArray(value) ? value.join(",") : value);
  }
  return parts;
}

/** The address of the state: everything but pictures from this device. */
export function toAddress(store) {
  const {asked, look, panel, pinned} = store;
  const parts = askedParts(asked);
  for (const [name, usual] of Object.entries(LOOK)) if (look[name] !== usual) parts.set(name, look[name]);
  if (panel) parts.set("panel", panel);
  for (const name of ["view", "here"]) if (Object.keys(store[name]).length) parts.set(name, JSON.stringify(store[name]));
  if (pinned) parts.set("pin", askedParts(pinned.asked));
  return `#${parts}`;
}

function readAsked(parts) {
  return {
    input: parts.get("in"), preset: parts.get("v") || "recommended", model: parts.get("m"),
    target: /^\d+$/.test(parts.get("c") || "") ? Number(parts.get("c")) : null,
    methods: (parts.get("x") || "").split(",").filter(Boolean),
  };
}

/** An object of an address; empty where it is damaged. */
function readObject(text) {
  try {
    const found = JSON.parse(text);
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

/** The state of an address; null where it names no input. */
export function fromAddress(address) {
  const parts = new URLSearchParams(address.replace(/^#/, ""));
  if (!parts.get("in")) return null;
  const look = {};
  for (const [name, usual] of Object.entries(LOOK)) {
    if (!parts.has(name)) continue;
    const text = parts.get(name);
    look[name] = typeof usual === "number" ? Number(text) || 0 : typeof usual === "boolean" ? text === "true" : text;
  }
  const pin = new URLSearchParams(parts.get("pin") || "");
  return {
    asked: readAsked(parts), look, panel: parts.get("panel") || "", view: readObject(parts.get("view")),
    here: readObject(parts.get("here")), pin: pin.get("in") ? readAsked(pin) : null,
  };
}

/** Whether a value of an address is of the kind that is expected. */
function alike(value, usual) {
  if (Array.isArray(usual)) return Array.isArray(value) && value.every((one) => Number.isInteger(one) && one >= 0);
  return typeof value === typeof usual && (typeof value !== "number" || Number.isFinite(value));
}

/** A choice inside a panel that the address keeps: its value, and a function that changes it. */
export function viewOf(store, name, usual) {
  const value = alike(store.view[name], usual) ? store.view[name] : usual;
  return [value, (next) => store.setView(name, next)];
}

/** The same for a choice that belongs to this input alone. */
export function hereOf(store, name, usual, undoable = false) {
  const value = alike(store.here[name], usual) ? store.here[name] : usual;
  return [value, (next) => store.setHere(name, next, undoable)];
}

/** Which kind of input this is. */
export const kindOf = (input) =>
  input.startsWith("text:") || input.startsWith("example:sentence") ? "text" : "image";
