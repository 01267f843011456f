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

/** What the model says, which model it is, and what to be careful about. */
function Answer({store}) {
  const {shown} = store;
  if (!shown) return html`<div class="answer"><p class="big">${store.trouble ? "" : "Asking the model\u2026"}</p><p class="quiet">The model is being loaded.</p></div>`;
  const about = shown.case;
  const best = about.classes[0];
  const other = best && best.index !== about.target.index;
  const Big = store.offline ? "h1" : "p";
  return html`<div class="answer" data-target=${about.target.index}>
    <${Big} class="big">${asking(store) ? "Ask the model about this picture." : best ? html`The model says <strong>${best.name}</strong>, ${percent(best.probability)}.` : html`<strong>${about.target.name || "Attribution"}</strong>`}
      ${other ? html` Explained is <strong>${about.target.name}</strong>, ${percent(about.target.probability)}.` : null}</${Big}>
    ${about.card ? html`<details class="card-text"><summary>${about.card.what}</summary><p>${about.card.name}. ${about.card.knows.length ? `It knows: ${about.card.knows.join(", ")}${about.card.count > about.card.knows.length ? ` and ${about.card.count - about.card.knows.length} more` : ""}.` : ""}</p></details>`
      : about.model ? html`<p class="quiet">${about.model}</p>` : null}
    ${about.cautions.map((one) => html`<p class="caution" role="note" key=${one}>${one}</p>`)}</div>`;
}

function Figure({store, name}) {
  const {shown, look, pointed} = store;
  const about = shown.case, map = shown.maps.get(name), why = shown.missing.get(name);
  const plain = store.plain(name);
  const said = map && map.preset !== "recommended" ? `${name}, ${map.preset}` : name;
  return html`<figure class="map" data-method=${name} data-ready=${Boolean(map)}>
    ${map ? html`<${MapView} about=${about} map=${map} look=${look} pointed=${pointed} onPoint=${(cell) => store.point(cell)} label=${`Map of ${name} for ${about.target.name}`} />`
      : html`<div class=${`blank ${about.kind}`} style=${about.size ? {aspectRatio: `${about.size[1]} / ${about.size[0]}`} : {}}>${why ? "no map" : "computing"}</div>`}
    <figcaption><strong>${said}</strong> <output class="value">${valueAt(map, pointed, about.tokens, look.words)}</output>
      <span class="quiet">${why ? `Left out: ${why}` : agreement(map, about.kind) || plain}</span></figcaption>
    ${map ? html`<${Legend} map=${map} look=${look} kind=${about.kind} />` : html`<div class="legend"></div>`}</figure>`;
}

function Maps({store}) {
  const {shown, look, pointed} = store;
  if (!shown) return html`<div class="gallery image">${store.asked.methods.concat("").map((_, i) => html`<figure class="map" key=${i}><div class="blank square"></div><figcaption>\u00a0</figcaption><div class="legend"></div></figure>`)}</div>`;
  const about = shown.case;
  return html`<div class=${`gallery ${about.kind}`} data-key=${shown.key}>
    ${about.kind === "image" ? html`<figure class="map input"><${MapView} about=${about} map=${null} look=${look} pointed=${pointed} onPoint=${(cell) => store.point(cell)} label=${asking(store) ? "The picture" : "The picture as the model sees it"} />
      <figcaption><strong>input</strong> <span class="quiet">${asking(store) ? "" : "as the model sees it"}</span></figcaption><div class="legend"></div></figure>` : null}
    ${(asking(store) ? [] : shown.asked.methods).map((name) => html`<${Figure} key=${name} store=${store} name=${name} />`)}</div>`;
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

function Results({store}) {
  const busy = !store.offline && !store.settled;
  const stale = store.shown && !store.offline && store.shown.asked !== store.asked && store.progress;
  return html`<main id="results" class=${stale ? "stale" : ""} aria-busy=${busy} data-settled=${!busy}>
    <${Answer} store=${store} />${store.offline ? null : html`<${Status} store=${store} />`}
    <${Maps} store=${store} />
    <p class="pointed" aria-live="polite">${asking(store) ? null : store.shown && store.pointed !== null ? html`<strong>${placeName(store.shown.case, store.pointed, store.look.words)}</strong>${" "}
      ${store.shown.asked.methods.filter((name) => store.shown.maps.has(name)).map((name) => `${name} ${valueAt(store.shown.maps.get(name), store.pointed, store.shown.case.tokens, store.look.words)}`).join(" \u00b7 ")}`
      : html`<span class="quiet">Point at a place, or focus a map and use the arrow keys, to read its number in every map.</span>`}</p>
    <${Panels} store=${store} /></main>`;
}

/** The whole page. */
export function Page({store}) {
  useStore(store);
  useEffect(() => {
    if (store.offline) return undefined;
    let timer = 0;
    const address = () => { if (location.hash !== toAddress(store)) history.replaceState(null, "", toAddress(store)); };
    const stop = store.listen(() => { clearTimeout(timer); timer = setTimeout(address, PAUSE); });
    const keys = (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target.matches("textarea, input[type=search], input:not([type])")) return;
      event.preventDefault();
      if (event.shiftKey) store.redo(); else store.undo();
    };
    const drop = (event) => {
      event.preventDefault();
      const files = [...(event.dataTransfer || event.clipboardData).files].filter((file) => file.type.startsWith("image/"));
      if (files.length) addFiles(store, files);
    };
    const over = (event) => event.preventDefault();
    const paste = (event) => { if (event.clipboardData.files.length) drop(event); };
    const all = {keydown: keys, drop, dragover: over, paste};
    for (const [name, take] of Object.entries(all)) window.addEventListener(name, take);
    return () => { clearTimeout(timer); stop(); for (const [name, take] of Object.entries(all)) window.removeEventListener(name, take); };
  }, []);
  const kind = kindOf(store.asked.input);
  if (store.offline) return html`<div class="alone"><${Results} store=${store} /><aside aria-label="Choices"><${LookChoice} store=${store} /></aside></div>`;
  const tab = (name, title, input) => html`<button type="button" aria-pressed=${kind === name} onClick=${() => kind !== name && show(store, input)}>${title}</button>`;
  return html`<header><h1>Vitrail <small>what did the model look at?</small></h1>
    <div class="row kinds" role="group" aria-label="Kind of input">${tab("image", "Picture", "example:golf_ball")}${tab("text", "Text", "example:sentence-1")}</div>
    <div class="row"><button type="button" id="undo" disabled=${!store.past.length} onClick=${() => store.undo()}>Undo</button>
      <button type="button" id="redo" disabled=${!store.future.length} onClick=${() => store.redo()}>Redo</button></div></header>
    <div class=${asking(store) ? "columns asking" : "columns"}><${Results} store=${store} /><aside aria-label="Choices"><${InputChoice} store=${store} />${asking(store) ? null : html`<${ClassChoice} store=${store} />
      <${MethodChoice} store=${store} />`}<${LookChoice} store=${store} /><${ModelChoice} store=${store} /></aside></div>`;
}
