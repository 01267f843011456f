// Start: from the address, or from results inside the page.
import {html, render} from "./html.js";
import {get} from "./api.js";
import {Page} from "./page.js";
import {LOOK, Store, fromAddress, kindOf} from "./store.js";
import {unpack} from "./numbers.js";

const FIRST = {image: ["consensus", "gae", "complete_gradient"], text: ["attcat", "consensus", "gae"]};
const MODELS = {image: "photo", text: "sentiment"};

/** What an address leaves open is filled in. */
function completed(found) {
  const kind = kindOf(found.asked.input);
  return {...found, asked: {
    ...found.asked, model: found.asked.model || MODELS[kind],
    methods: found.asked.methods.length ? found.asked.methods : FIRST[kind],
  }};
}

function fromServer() {
  const first = fromAddress(location.hash) || {asked: {input: "example:golf_ball", preset: "recommended", target: null, methods: [], model: null}, look: {}};
  const store = new Store(completed(first));
  store.first = FIRST;
  store.plain = (name) => {
    const cards = store.about ? store.about.methods[kindOf(store.asked.input)] : [];
    const card = cards.find((one) => one.name === name);
    return card ? card.plain : "";
  };
  const load = (route, name) => get(route).then((found) => { store[name] = found; store.changed(); })
    .catch((error) => { store.trouble = error.message; store.changed(); });
  load("examples", "examples");
  load("models", "about");
  window.addEventListener("hashchange", () => {
    const found = fromAddress(location.hash);
    if (!found) return;
    const {asked, look, panel, view, here, pin} = completed(found);
    Object.assign(store, {look: {...LOOK, ...look}, panel, view});
    store.set(asked, here);
    store.here = here;
    store.changed();
    if (pin) store.pinFrom(pin); else store.unpin();
  });
  if (first.pin) store.pinFrom(first.pin);
  return store;
}

function fromData(data) {
  const methods = data.maps.map((map) => map.label);
  const asked = {input: "inside", model: data.case.model, target: null, preset: "recommended", methods};
  const store = new Store({asked, look: {palette: data.palette}});
  const maps = new Map(data.maps.map((map) => [map.label, {...map, values: unpack(map.scores).values, fine: unpack(map.pixels)}]));
  store.offline = true;
  store.parts = data.parts;
  store.plain = (name) => data.plain[name] || "";
  store.shown = {key: "inside", asked, case: data.case, maps, missing: new Map()};
  return store;
}

const inside = document.getElementById("data");
const store = inside ? fromData(JSON.parse(inside.textContent)) : fromServer();
const place = document.getElementById("app");
place.textContent = "";
render(html`<${Page} store=${store} />`, place);
if (!store.offline) store.run();
