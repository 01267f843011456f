// Attention: every layer and head as a grid, from where the answer is read or from the place that is pointed at.
import {html, useEffect, useMemo, useState} from "../html.js";
import {MapView, Tile, placeName} from "../maps.js";
import {unpack} from "../numbers.js";
import {hereOf, viewOf} from "../store.js";
import {Waiting, plainBase, useAnswer} from "./asking.js";

function View({store}) {
  const about = store.shown.case;
  const [source, setSource] = hereOf(store, "token", -1);
  const [mark, setMark] = viewOf(store, "head", [0, 0]);
  const count = about.kind === "image" ? about.grid[0] * about.grid[1] : about.tokens.text.length;
  const token = source >= 0 && source < count ? source : null;
  const setToken = (place) => setSource(place === null ? -1 : place);
  useEffect(() => {
    if (store.pointed === null) return undefined;
    const timer = setTimeout(() => setToken(store.pointed), 150);
    return () => clearTimeout(timer);
  }, [store.pointed]);
  const state = useAnswer(store, "attention", {...plainBase(store), token});
  const [last, setLast] = useState(null);
  useEffect(() => { if (state.found && state.found.rows) setLast({key: store.shown.key, found: state.found}); }, [state.found]);
  const found = state.found && state.found.rows ? state.found : last && last.key === store.shown.key ? last.found : null;
  const table = useMemo(() => found && unpack(found.rows), [found]);
  if (!table) return html`<${Waiting} state=${state} />`;
  const [layers, heads, width] = table.shape;
  const row = (l, h) => table.values.subarray((l * heads + h) * width, (l * heads + h + 1) * width);
  const [l, h] = [Math.min(mark[0] || 0, layers - 1), Math.min(mark[1] || 0, heads - 1)];
  const from = found.token === null ? "where the answer is read" : placeName(about, found.token, false);
  const map = {values: row(l, h), grid: about.grid, signed: false, fine: null};
  return html`<div><p>Attention from <strong>${from}</strong>. Point at a ${about.kind === "image" ? "patch" : "token"} to see where it attends.
    ${" "}<button type="button" onClick=${() => setToken(null)} disabled=${token === null}>From the answer</button></p>
    <div class="panel-columns"><div class=${about.kind === "image" ? "small-map" : ""}><${MapView} about=${about} map=${map} look=${{...store.look, words: false}} pointed=${store.pointed} onPoint=${(cell) => store.point(cell)}
      label=${`Attention of layer ${l + 1}, head ${h + 1}`} /><p><strong>Layer ${l + 1}, head ${h + 1}</strong></p></div>
    <div class="scroll" tabindex="0" role="region" aria-label="Every layer and head"><table class="grid" id="attention"><thead><tr><td></td>${Array.from({length: heads}, (_, i) => html`<th scope="col" key=${i}>h${i + 1}</th>`)}</tr></thead>
    <tbody>${Array.from({length: layers}, (_, i) => html`<tr key=${i}><th scope="row">l${i + 1}</th>${Array.from({length: heads}, (_, j) => html`<td key=${j} class=${about.kind}><${Tile} about=${about} values=${row(i, j)} signed=${false}
      look=${store.look} label=${`layer ${i + 1}, head ${j + 1}`} chosen=${i === l && j === h} onChoose=${() => setMark([i, j])} /></td>`)}</tr>`)}</tbody></table></div></div></div>`;
}

export const attention = {id: "attention", title: "Attention", offline: false, View};
