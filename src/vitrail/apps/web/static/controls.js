// What a visitor chooses: the input, the class, the methods, the look, the model.
import {html, useEffect, useRef, useState} from "./html.js";
import {ask} from "./api.js";
import {PALETTES} from "./colours.js";
import {percent} from "./numbers.js";
import {kindOf} from "./store.js";

/** A small picture of a file. */
async function thumbnail(file) {
  try {
    const bitmap = await createImageBitmap(file, {resizeWidth: 96, resizeHeight: 96, resizeQuality: "medium"});
    const canvas = Object.assign(document.createElement("canvas"), {width: 96, height: 96});
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    return canvas.toDataURL("image/jpeg", 0.8);
  } catch {
    return "";
  }
}

/** Hand in files of this device; the first is explained. */
export async function addFiles(store, files) {
  let first = null;
  for (const file of files) {
    const input = store.addFile(file, await thumbnail(file));
    first = first || input;
  }
  if (first) show(store, first);
}

/** The model that an example was written for; a model of the visitor's own stays. */
function modelOf(store, input, model) {
  const {models = {}} = store.examples || {};
  return Object.values(models).includes(model) ? models[input.slice(8)] || model : model;
}

/** Explain another input, with a model that reads it. */
export function show(store, input) {
  const kind = kindOf(input);
  const other = kind !== kindOf(store.asked.input);
  const about = store.about;
  const first = other ? (about ? about.models[kind][0] : kind === "text" ? "sentiment" : "photo") : store.asked.model;
  const model = input.startsWith("example:") ? modelOf(store, input, first) : first;
  const methods = other ? (about ? about.chosen[kind] : store.first[kind]) : store.asked.methods;
  store.set({input, model, methods, target: null});
}

/** Where a picture or a text comes from. */
export function InputChoice({store}) {
  const kind = kindOf(store.asked.input);
  const examples = (store.examples && store.examples[kind]) || {};
  const picker = useRef(null);
  return html`<section aria-label="Input" class="card">
    ${kind === "image"
      ? html`<button type="button" class="wide" onClick=${() => picker.current.click()}>Choose pictures\u2026</button>
          <input ref=${picker} id="upload" type="file" accept="image/*" multiple hidden aria-label="Pictures from this device"
            onChange=${(event) => { addFiles(store, [...event.target.files]); event.target.value = ""; }} />
          <p class="quiet">or drop or paste them anywhere</p>`
      : html`<${TextChoice} store=${store} />`}
    <ul class=${`examples ${kind}`} aria-label="Examples">
      ${Object.entries(examples).map(([name, words]) => html`<li key=${name}><button type="button" class="example"
        aria-pressed=${store.asked.input === `example:${name}`} onClick=${() => show(store, `example:${name}`)}>
        ${kind === "image" ? html`<img src=${`api/examples/${name}.jpg`} alt="" width="64" height="64" />` : null}
        <span>${words}</span></button></li>`)}
      ${kind === "text" ? store.texts.map((text) => html`<li key=${text}><button type="button" class="example"
        aria-pressed=${store.asked.input === `text:${text}`} onClick=${() => show(store, `text:${text}`)}><span>${text.length > 90 ? `${text.slice(0, 89)}\u2026` : text}</span></button></li>`) : null}
      ${kind === "image" ? store.tray.map((one) => html`<li key=${one.input}><button type="button" class="example"
        aria-pressed=${store.asked.input === one.input} onClick=${() => show(store, one.input)}>
        ${one.thumbnail ? html`<img src=${one.thumbnail} alt="" width="64" height="64" />` : null}
        <span>${one.name}</span></button></li>`) : null}
    </ul></section>`;
}

function TextChoice({store}) {
  const {input} = store.asked;
  const said = input.startsWith("text:") ? input.slice(5)
    : (store.examples && store.examples.text[input.slice(8)]) || "";
  const [text, setText] = useState(said);
  useEffect(() => setText(said), [said]);
  const go = (event) => {
    event.preventDefault();
    if (text.trim()) show(store, `text:${text.trim()}`);
  };
  return html`<form onSubmit=${go}><label for="text">Your text</label>
    <textarea id="text" rows="4" value=${text} onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && go(event)}></textarea>
    <button type="submit" class="wide main">Explain</button></form>`;
}

/** The classes: the most probable ones, and any other by search. */
export function ClassChoice({store}) {
  const {shown, asked} = store;
  const [words, setWords] = useState("");
  const [found, setFound] = useState(null);
  const about = shown && shown.case;
  useEffect(() => {
    if (!words.trim() || !store.settled) { setFound(null); return undefined; }
    const control = new AbortController();
    const timer = setTimeout(() => {
      const {input, model} = asked;
      ask("classes", {input, model, words: words.trim()}, store.files, (event) => event.found && setFound(event.found), control.signal)
        .catch(() => {});
    }, 200);
    return () => { clearTimeout(timer); control.abort(); };
  }, [words, shown && shown.key]);
  const listed = about ? [...about.classes] : [];
  if (about && !listed.some((one) => one.index === about.target.index)) listed.push(about.target);
  const chosen = asked.target === null ? (about && about.classes[0] ? about.classes[0].index : -1) : asked.target;
  const option = (one) => html`<li key=${one.index}><button type="button" class="class" aria-pressed=${one.index === chosen}
    onClick=${() => store.set({target: one.index})}><span class="name">${one.name}</span>
    <span class="bar" aria-hidden="true"><span style=${{width: `${one.probability * 100}%`}}></span></span>
    <span class="number">${percent(one.probability)}</span></button></li>`;
  return html`<section aria-label="Explain which answer?" class="card"><h2>Explain which answer?</h2>
    <ul class="classes">${(found || listed).map(option)}${about ? null : Array.from({length: kindOf(asked.input) === "image" ? 6 : 2}, (_, i) => html`<li key=${i} class="class blank"></li>`)}</ul>
    ${!about || about.count > listed.length ? html`<label class="search">Search all ${about ? about.count : ""}
      <input type="search" value=${words} disabled=${!about} onInput=${(event) => setWords(event.target.value)} /></label>` : null}
    ${found && !found.length ? html`<p class="quiet">No class has this name.</p>` : null}</section>`;
}

/** The methods as cards: what each shows, its paper, its cost. */
export function MethodChoice({store}) {
  const kind = kindOf(store.asked.input);
  const cards = store.about ? store.about.methods[kind] : [];
  const {methods} = store.asked;
  const [words, setWords] = useState("");
  const most = 8;
  const toggle = (name) => {
    const next = methods.includes(name) ? methods.filter((one) => one !== name) : [...methods, name];
    if (next.length && next.length <= most) store.set({methods: next});
  };
  const fits = cards.filter((card) => `${card.name} ${card.plain} ${card.paper}`.toLowerCase().includes(words.toLowerCase()));
  return html`<section aria-label="Methods" class="card"><h2>Methods</h2>
    <ul class="chips">${methods.map((name) => html`<li key=${name}><button type="button" class="chip" aria-label=${`Remove ${name}`}
      title=${methods.length > 1 ? `Remove ${name}` : "One method has to stay"} disabled=${methods.length < 2}
      onClick=${() => toggle(name)}>${name}<span aria-hidden="true"> \u00d7</span></button></li>`)}</ul>
    <details><summary>Choose methods (${cards.length || "\u2026"})</summary>
      <label class="search">Find <input type="search" value=${words} onInput=${(event) => setWords(event.target.value)} /></label>
      <ul class="cards">${fits.map((card) => html`<li key=${card.name}><label class="method"><input type="checkbox"
        checked=${methods.includes(card.name)} disabled=${!methods.includes(card.name) && methods.length >= most}
        onChange=${() => toggle(card.name)} /><span><strong>${card.name}</strong> ${card.plain}
        <small>${card.signed ? "for and against" : "how much"}${card.class_specific ? "" : " \u00b7 same for every class"} \u00b7 ${card.cost}${card.quick ? "" : " \u00b7 takes longer"}</small>
        <small>${card.paper}</small>${card.when ? html`<small>${card.when}</small>` : null}</span></label></li>`)}</ul></details>
    <label>Version <select value=${store.asked.preset} onChange=${(event) => store.set({preset: event.target.value})}>
      <option value="recommended">what measured best</option><option value="paper">what the paper writes</option>
      <option value="official">what the authors' code computes</option></select></label></section>`;
}

/** How maps are drawn. */
export function LookChoice({store}) {
  const {look} = store;
  const picture = kindOf(store.asked.input) === "image";
  const range = (name, label, low, high, step, words) => html`<label>${label}
    <output>${words(look[name])}</output><input type="range" id=${`look-${name}`} min=${low} max=${high} step=${step} value=${look[name]}
    onInput=${(event) => store.setLook({[name]: Number(event.target.value)})} /></label>`;
  const share = (value) => `${Math.round(value * 100)}\u00a0%`;
  return html`<section aria-label="Look" class="card"><h2>Look</h2>
    <label>Colours <select id="look-palette" value=${look.palette} onChange=${(event) => store.setLook({palette: event.target.value})}>
      ${Object.keys(PALETTES).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
    ${picture ? range("opacity", "Colour over picture", 0, 1, 0.05, share) : null}
    ${range("threshold", "Hide below", 0, 0.95, 0.05, share)}
    ${picture ? range("zoom", "Zoom", 1, 6, 0.5, (value) => `${value}\u00d7`) : null}
    ${picture ? html`<label class="check"><input type="checkbox" id="look-smooth" checked=${look.smooth}
        onChange=${(event) => store.setLook({smooth: event.target.checked})} /> smooth between patches</label>`
      : html`<label class="check"><input type="checkbox" id="look-words" checked=${look.words}
        onChange=${(event) => store.setLook({words: event.target.checked})} /> whole words</label>`}</section>`;
}

/** Which model answers. */
export function ModelChoice({store}) {
  const kind = kindOf(store.asked.input);
  const names = store.about ? store.about.models[kind] : [store.asked.model];
  const [own, setOwn] = useState("");
  if (names.length < 2 && !(store.about && store.about.any_model)) return null;
  return html`<section aria-label="Model" class="card"><h2>Model</h2>
    <label>Name <select value=${store.asked.model} onChange=${(event) => store.set({model: event.target.value, target: null})}>
      ${[...new Set([...names, store.asked.model])].map((name) => html`<option key=${name} value=${name}>${name.split("/").pop()}</option>`)}
    </select></label>
    ${store.about && store.about.any_model ? html`<form onSubmit=${(event) => { event.preventDefault(); if (own.trim()) store.set({model: own.trim(), target: null}); }}>
      <label>Another <input value=${own} onInput=${(event) => setOwn(event.target.value)} /></label></form>` : null}</section>`;
}
