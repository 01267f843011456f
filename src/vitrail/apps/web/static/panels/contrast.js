// Why not: what speaks for one class rather than another.
import {html, useEffect, useMemo, useState} from "../html.js";
import {ask} from "../api.js";
import {Legend, MapView} from "../maps.js";
import {percent, unpack} from "../numbers.js";
import {hereOf} from "../store.js";
import {Waiting, plainBase, useAnswer} from "./asking.js";

/** Classes by name, any of them. */
function useFound(store, words) {
  const [found, setFound] = useState([]);
  const {input, model} = store.shown.asked;
  useEffect(() => {
    setFound([]);
    if (!words.trim()) return undefined;
    const control = new AbortController();
    const timer = setTimeout(() => ask("classes", {input, model, words: words.trim()}, store.files,
      (event) => event.found && setFound(event.found), control.signal).catch(() => {}), 200);
    return () => { clearTimeout(timer); control.abort(); };
  }, [words, input, model]);
  return found;
}

function View({store}) {
  const about = store.shown.case;
  const [words, setWords] = useState("");
  const [chosen, setChosen] = hereOf(store, "other", -1);
  const more = useFound(store, words);
  const listed = new Map([...about.classes, ...more].map((one) => [one.index, one]));
  if (chosen >= 0 && chosen < about.count && !listed.has(chosen)) listed.set(chosen, {index: chosen, name: `class ${chosen}`});
  const others = [...listed.values()].filter((one) => one.index !== about.target.index);
  const other = others.some((one) => one.index === chosen) ? chosen : others[0] && others[0].index;
  const state = useAnswer(store, "contrast", other === undefined ? null : {...plainBase(store), other});
  const found = state.found && state.found.map ? state.found : null;
  const map = useMemo(() => found && {...found.map, values: unpack(found.map.scores).values, fine: unpack(found.map.pixels)}, [found]);
  const option = (one) => html`<option key=${one.index} value=${one.index}>${one.name}${one.probability === undefined ? "" : `, ${percent(one.probability)}`}</option>`;
  return html`<div><label>${about.target.name} rather than <select value=${other} onChange=${(event) => setChosen(Number(event.target.value))}>${others.map(option)}</select></label>
    ${about.count > about.classes.length ? html`<label class="search">Search all ${about.count} <input type="search" id="search-other" value=${words} onInput=${(event) => setWords(event.target.value)} /></label>` : null}
    ${more.length ? html`<div class="row">${more.filter((one) => one.index !== about.target.index).slice(0, 8).map((one) => html`<button type="button" key=${one.index} aria-pressed=${one.index === other} onClick=${() => setChosen(one.index)}>${one.name}</button>`)}</div>` : null}
    ${map ? html`<figure class=${about.kind === "image" ? "small-map" : ""} id="contrast"><${MapView} about=${about} map=${map} look=${store.look} pointed=${store.pointed} onPoint=${(cell) => store.point(cell)}
      label=${`${found.first.name} rather than ${found.second.name}`} /><figcaption>Warm colours speak for <strong>${found.first.name}</strong>, cool ones for <strong>${found.second.name}</strong>.</figcaption>
      <${Legend} map=${map} look=${store.look} kind=${about.kind} /></figure>` : html`<${Waiting} state=${state} />`}</div>`;
}

export const contrast = {id: "why-not", title: "Why not", offline: false, View};
