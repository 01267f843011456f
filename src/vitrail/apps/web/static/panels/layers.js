// Layers: a method's own map for each layer, head or part, where it has them.
import {html, useMemo} from "../html.js";
import {MapView, Tile, valueAt} from "../maps.js";
import {unpack} from "../numbers.js";
import {viewOf} from "../store.js";
import {MethodSelect, Waiting, base, present, useAnswer} from "./asking.js";

/** The rows of a packed table. */
export function rows(packed) {
  const found = unpack(packed);
  if (!found) return [];
  const width = found.shape[found.shape.length - 1];
  const count = found.values.length / width;
  return Array.from({length: count}, (_, i) => found.values.subarray(i * width, (i + 1) * width));
}

function View({store}) {
  const [chosen, setMethod] = viewOf(store, "map", "");
  const [mark, setMark] = viewOf(store, "part", 0);
  const method = present(store, chosen);
  const inside = store.parts && store.parts[method];
  const state = useAnswer(store, "layers", method && !store.parts ? {...base(store), method} : null);
  const found = store.parts ? inside || {layers: null, heads: null} : state.found;
  const about = store.shown.case;
  const parts = useMemo(() => found && [
    ...rows(found.layers).map((values, i) => ({values, name: found.layer_names ? found.layer_names[i] : `layer ${i + 1}`})),
    ...rows(found.heads).map((values, i) => ({values, name: `head ${i + 1}`})),
  ], [found]);
  const map = store.shown.maps.get(method);
  const at = parts && parts[Math.max(0, Math.min(mark, parts.length - 1))];
  const signed = (values) => (map && map.signed) || values.some((value) => value < 0);
  const said = (values) => valueAt({values, signed: signed(values)}, store.pointed, about.tokens, store.look.words);
  return html`<div><${MethodSelect} store=${store} method=${method} onMethod=${setMethod} />
    ${parts && !parts.length ? html`<p>${method} has one map only. attcat, cat, tokentm and consensus have one for each layer or part; gradtoken has one for each head.</p>` : null}
    ${at ? html`<div class="panel-columns"><div class=${about.kind === "image" ? "small-map" : ""}><${MapView} about=${about} map=${{...map, values: at.values, fine: null, signed: signed(at.values)}}
        look=${store.look} pointed=${store.pointed} onPoint=${(cell) => store.point(cell)} label=${`${method}, ${at.name}`} /><p><strong>${at.name}</strong> of ${method} <output class="value">${said(at.values)}</output></p></div>
      <div class=${`tiles ${about.kind}`} role="group" aria-label="Layers and heads">${parts.map((one, i) => html`<div class="named"><${Tile} key=${i} about=${about} values=${one.values} signed=${signed(one.values)} look=${store.look}
        label=${one.name} chosen=${one === at} onChoose=${() => setMark(i)} /><small>${one.name}<span class="value">${said(one.values) || "\u00a0"}</span></small></div>`)}</div></div>` : store.parts ? null : html`<${Waiting} state=${state} />`}</div>`;
}

export const layers = {id: "layers", title: "Layers", offline: true, View};
