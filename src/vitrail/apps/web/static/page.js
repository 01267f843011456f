// The page: what is asked on the left, the one answer that is shown on the right, panels below it.
import {html, useEffect, useState} from "./html.js";
import {ClassChoice, InputChoice, LookChoice, MethodChoice, ModelChoice, addFiles, show} from "./controls.js";
import {Legend, MapView, agreement, placeName, valueAt} from "./maps.js";
import {percent} from "./numbers.js";
import {PANELS} from "./panels/index.js";
import {kindOf, toAddress} from "./store.js";

/** Milliseconds without a change after which the address follows: browsers allow 200 changes of it in ten seconds. */
const PAUSE = 100;

/** Render again when the store changes. */
function useStore(store) {
  const [, again] = useState(0);
  useEffect(() => store.listen(() => again((count) => count + 1)), []);
}

/** Whether the model on the screen is one that is asked questions about pictures: it has no classes and no maps of them. */
const asking = (store) => Boolean(store.shown) && store.shown.case.task === "asking";

/** The class that the model sees, and the one that is explained if that is another. */
function Headline({store}) {
  const {target, classes: [best]} = store.shown.case;
  if (asking(store)) return "Ask the model about this picture.";
  if (!best) return html`<strong>${target.name || "Attribution"}</strong>`;
  const says = html`The model says <strong>${best.name}</strong>, ${percent(best.probability)}.`;
  if (best.index === target.index) return says;
  return html`${says} Explained is <strong>${target.name}</strong>, ${percent(target.probability)}.`;
}

/** What a model knows, in words. */
function knowledge({knows, count}) {
  if (!knows.length) return "";
  const more = count > knows.length ? ` and ${count - knows.length} more` : "";
  return `It knows: ${knows.join(", ")}${more}.`;
}

/** Which model it is. */
function Card({about: {card, model}}) {
  if (card) return html`<details class="card-text"><summary>${card.what}</summary><p>${card.name}. ${knowledge(card)}</p></details>`;
  return model ? html`<p class="quiet">${model}</p>` : null;
}

/** What to be careful about. */
function Cautions({about}) {
  return about.cautions.map((one) => html`<p class="caution" role="note" key=${one}>${one}</p>`);
}

/** What the model says, which model it is, and what to be careful about. */
function Answer({store}) {
  const about = store.shown && store.shown.case;
  if (!about) {
    const words = store.trouble ? "" : "Asking the model\u2026";
    return html`<div class="answer"><p class="big">${words}</p><p class="quiet">The model is being loaded.</p></div>`;
  }
  const Big = store.offline ? "h1" : "p";
  return html`<div class="answer" data-target=${about.target.index}>
    <${Big} class="big"><${Headline} store=${store} /></${Big}>
    <${Card} about=${about} /><${Cautions} about=${about} /></div>`;
}

/** The place of a map that is not there, with what is the matter. */
function Blank({about, words}) {
  const shape = about.size ? {aspectRatio: `${about.size[1]} / ${about.size[0]}`} : {};
  return html`<div class=${`blank ${about.kind}`} style=${shape}>${words}</div>`;
}

/** One map with its name, its number at the place that is pointed at, and its colours. */
function Figure({store, name}) {
  const {shown, look, pointed} = store;
  const about = shown.case, map = shown.maps.get(name), why = shown.missing.get(name);
  const title = map && map.preset !== "recommended" ? `${name}, ${map.preset}` : name;
  const remark = why ? `Left out: ${why}` : agreement(map, about.kind) || store.plain(name);
  const point = (cell) => store.point(cell);
  const picture = map
    ? html`<${MapView} about=${about} map=${map} look=${look} pointed=${pointed} onPoint=${point} label=${`Map of ${name} for ${about.target.name}`} />`
    : html`<${Blank} about=${about} words=${why ? "no map" : "computing"} />`;
  const legend = map ? html`<${Legend} map=${map} look=${look} kind=${about.kind} />` : html`<div class="legend"></div>`;
  return html`<figure class="map" data-method=${name} data-ready=${Boolean(map)}>
    ${picture}
    <figcaption><strong>${title}</strong> <output class="value">${valueAt(map, pointed, about.tokens, look.words)}</output>
      <span class="quiet">${remark}</span></figcaption>
    ${legend}</figure>`;
}

/** The picture beside its maps; text has none of its own. */
function Picture({store}) {
  const {shown: {case: about}, look, pointed} = store;
  if (about.kind !== "image") return null;
  const label = asking(store) ? "The picture" : "The picture as the model sees it";
  const remark = asking(store) ? "" : "as the model sees it";
  return html`<figure class="map input"><${MapView} about=${about} map=${null} look=${look} pointed=${pointed} onPoint=${(cell) => store.point(cell)} label=${label} />
    <figcaption><strong>input</strong> <span class="quiet">${remark}</span></figcaption><div class="legend"></div></figure>`;
}

/** As many empty places as there will be maps. */
function Waiting({store}) {
  const blank = (_, i) => html`<figure class="map" key=${i}><div class="blank square"></div><figcaption>\u00a0</figcaption><div class="legend"></div></figure>`;
  return html`<div class="gallery image">${store.asked.methods.concat("").map(blank)}</div>`;
}

function Maps({store}) {
  const {shown} = store;
  if (!shown) return html`<${Waiting} store=${store} />`;
  const names = asking(store) ? [] : shown.asked.methods;
  return html`<div class=${`gallery ${shown.case.kind}`} data-key=${shown.key}>
    <${Picture} store=${store} />
    ${names.map((name) => html`<${Figure} key=${name} store=${store} name=${name} />`)}</div>`;
}

function Panels({store}) {
  const {shown} = store;
  if (!shown || !(asking(store) || shown.asked.methods.some((name) => shown.maps.has(name)))) return null;
  const fits = (panel) => (panel.fits ? panel.fits(shown.case) : !asking(store));
  const offered = PANELS.filter((panel) => (!store.offline || panel.offline) && fits(panel));
  const open = offered.find((panel) => panel.id === store.panel) || offered[0];
  const choose = (id) => { store.panel = id; store.changed(); };
  const move = (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    const tabs = [...event.currentTarget.querySelectorAll("[role=tab]")];
    tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length].focus();
  };
  return html`<section aria-label="More about this answer" class="panels">
    <div role="tablist" aria-label="Panels" onKeyDown=${move}>${offered.map((panel) => html`<button type="button" role="tab" key=${panel.id} id=${`tab-${panel.id}`}
      aria-selected=${open === panel} aria-controls=${open === panel ? `panel-${panel.id}` : undefined} tabindex=${open === panel ? 0 : -1} onClick=${() => choose(panel.id)}>${panel.title}</button>`)}</div>
    <div role="tabpanel" id=${`panel-${open.id}`} aria-labelledby=${`tab-${open.id}`} class="card" key=${open.id}><${open.View} store=${store} /></div></section>`;
}

function Status({store}) {
  return html`<div class="status" role="status" aria-live="polite">${store.progress ? html`<progress max="1" value=${store.progress.share} aria-label=${store.progress.words}></progress>
    <span>${store.progress.words}</span> <button type="button" id="stop" onClick=${() => store.stop()}>Stop</button>` : null}</div>
    ${store.trouble ? html`<p class="trouble" role="alert">${store.trouble[0].toUpperCase() + store.trouble.slice(1)}</p>` : null}`;
}

/** The number of every map at the place that is pointed at. */
function Numbers({store}) {
  const {shown, pointed, look} = store;
  if (asking(store)) return null;
  if (!shown || pointed === null) return html`<span class="quiet">Point at a place, or focus a map and use the arrow keys, to read its number in every map.</span>`;
  const {tokens} = shown.case;
  const there = shown.asked.methods.filter((name) => shown.maps.has(name));
  const numbers = there.map((name) => `${name} ${valueAt(shown.maps.get(name), pointed, tokens, look.words)}`);
  return html`<strong>${placeName(shown.case, pointed, look.words)}</strong>${" "}
    ${numbers.join(" \u00b7 ")}`;
}

function Results({store}) {
  const busy = !store.offline && !store.settled;
  const stale = store.shown && !store.offline && store.shown.asked !== store.asked && store.progress;
  return html`<main id="results" class=${stale ? "stale" : ""} aria-busy=${busy} data-settled=${!busy}>
    <${Answer} store=${store} />${store.offline ? null : html`<${Status} store=${store} />`}
    <${Maps} store=${store} />
    <p class="pointed" aria-live="polite"><${Numbers} store=${store} /></p>
    <${Panels} store=${store} /></main>`;
}

/** Write what is asked into the address, a little after it changed; gives what ends that. */
function followAddress(store) {
  let timer = 0;
  const write = () => { if (location.hash !== toAddress(store)) history.replaceState(null, "", toAddress(store)); };
  const stop = store.listen(() => { clearTimeout(timer); timer = setTimeout(write, PAUSE); });
  return () => { clearTimeout(timer); stop(); };
}

/** Take undo and redo from the keyboard, and pictures that are dropped or pasted; gives what ends that. */
function takeFromWindow(store) {
  const keydown = (event) => {
    const command = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z";
    if (!command || event.target.matches("textarea, input[type=search], input:not([type])")) return;
    event.preventDefault();
    if (event.shiftKey) store.redo(); else store.undo();
  };
  const drop = (event) => {
    event.preventDefault();
    const files = [...(event.dataTransfer || event.clipboardData).files].filter((file) => file.type.startsWith("image/"));
    if (files.length) addFiles(store, files);
  };
  const dragover = (event) => event.preventDefault();
  const paste = (event) => { if (event.clipboardData.files.length) drop(event); };
  const all = Object.entries({keydown, drop, dragover, paste});
  for (const [name, take] of all) window.addEventListener(name, take);
  return () => { for (const [name, take] of all) window.removeEventListener(name, take); };
}

function Header({store}) {
  const kind = kindOf(store.asked.input);
  const tab = (name, title, input) => html`<button type="button" aria-pressed=${kind === name} onClick=${() => kind !== name && show(store, input)}>${title}</button>`;
  return html`<header><h1>Vitrail <small>what did the model look at?</small></h1>
    <div class="row kinds" role="group" aria-label="Kind of input">${tab("image", "Picture", "example:golf_ball")}${tab("text", "Text", "example:sentence-1")}</div>
    <div class="row"><button type="button" id="undo" disabled=${!store.past.length} onClick=${() => store.undo()}>Undo</button>
      <button type="button" id="redo" disabled=${!store.future.length} onClick=${() => store.redo()}>Redo</button></div></header>`;
}

/** What is asked. Of a model that is asked questions there are no classes and methods to choose. */
function Choices({store}) {
  const ofMaps = asking(store) ? null : html`<${ClassChoice} store=${store} /><${MethodChoice} store=${store} />`;
  return html`<aside aria-label="Choices"><${InputChoice} store=${store} />${ofMaps}<${LookChoice} store=${store} /><${ModelChoice} store=${store} /></aside>`;
}

/** The whole page. */
export function Page({store}) {
  useStore(store);
  useEffect(() => {
    if (store.offline) return undefined;
    const ends = [followAddress(store), takeFromWindow(store)];
    return () => ends.forEach((end) => end());
  }, []);
  if (store.offline) return html`<div class="alone"><${Results} store=${store} /><aside aria-label="Choices"><${LookChoice} store=${store} /></aside></div>`;
  return html`<${Header} store=${store} />
    <div class=${asking(store) ? "columns asking" : "columns"}><${Results} store=${store} /><${Choices} store=${store} /></div>`;
}
