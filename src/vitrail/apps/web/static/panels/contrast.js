// Why not: what speaks for one class rather than another.
import {html, useMemo, useState} from "../html.js";
import {Legend, MapView} from "../maps.js";
import {percent, unpack} from "../numbers.js";
import {Waiting, plainBase, useAnswer} from "./asking.js";

function View({store}) {
  const about = store.shown.case;
  const others = about.classes.filter((one) => one.index !== about.target.index);
  const [chosen, setChosen] = useState(null);
  const other = others.some((one) => one.index === chosen) ? chosen : others[0] && others[0].index;
  const state = useAnswer(store, "contrast", other === undefined ? null : {...plainBase(store), other});
  const found = state.found && state.found.map ? state.found : null;
  const map = useMemo(() => found && {...found.map, values: unpack(found.map.scores).values, fine: unpack(found.map.pixels)}, [found]);
  const option = (one) => html`<option key=${one.index} value=${one.index}>${one.name}, ${percent(one.probability)}</option>`;
  return html`<div><label>${about.target.name} rather than <select value=${other} onChange=${(event) => setChosen(Number(event.target.value))}>${others.map(option)}</select></label>
    ${map ? html`<figure class=${about.kind === "image" ? "small-map" : ""} id="contrast"><${MapView} about=${about} map=${map} look=${store.look} pointed=${store.pointed} onPoint=${(cell) => store.point(cell)}
      label=${`${found.first.name} rather than ${found.second.name}`} /><figcaption>Warm colours speak for <strong>${found.first.name}</strong>, cool ones for <strong>${found.second.name}</strong>.</figcaption>
      <${Legend} map=${map} look=${store.look} kind=${about.kind} /></figure>` : html`<${Waiting} state=${state} />`}</div>`;
}

export const contrast = {id: "why-not", title: "Why not", offline: false, View};
