// Remove: take away the most important parts in the order of a map, beside random order and order from the centre.
import {html} from "../html.js";
import {Chart} from "../chart.js";
import {Canvas, Sentence, useDrawing} from "../maps.js";
import {drawRemoved} from "../drawing.js";
import {percent, points, unpack} from "../numbers.js";
import {viewOf} from "../store.js";
import {FillChoice, MethodSelect, Waiting, base, present, useAnswer} from "./asking.js";

const MISLEADING = 0.5;

/** The fills that hardly remove anything: the class keeps more than half of its probability without any picture. */
export function misleading(ends, start) {
  return Object.entries(ends).filter(([, end]) => end > MISLEADING * start).map(([name]) => name);
}

function Left({store, found, level}) {
  const about = store.shown.case;
  const gone = unpack(found.removed_at).values;
  if (about.kind === "text") {
    const places = new Set([...gone.keys()].filter((i) => Math.round(gone[i]) <= level));
    return html`<${Sentence} tokens=${about.tokens} look=${{...store.look, words: false}} gone=${places} pointed=${null} onPoint=${() => {}} label="What is left" />`;
  }
  const [rows, columns] = found.shape;
  const canvas = useDrawing((element, shown, background) => {
    drawRemoved(element, shown, background, about.size, (cell) => Math.round(gone[cell]) <= level, rows, columns);
  }, [about.picture, found.background], [about.picture, found, level]);
  return html`<div class="small-map"><${Canvas} label="What is left of the picture" grid=${about.grid} size=${about.size} pointed=${null} onPoint=${() => {}} canvas=${canvas} /></div>`;
}

/** The same order of removal with every fill, so that a misleading one is seen. */
function Fills({store, method}) {
  const {name} = store.shown.case.target;
  const state = useAnswer(store, "fills", {...base(store), method});
  const rows = state.found ? state.found.events.filter((event) => event.fill) : [];
  const end = (row) => row.curve[row.curve.length - 1];
  return html`${rows.length ? html`<table class="plain" id="all-fills"><caption>Probability of ${name} in the order of ${method}</caption>
    <thead><tr><th scope="col">fill</th><th scope="col">whole</th><th scope="col">half removed</th><th scope="col">all removed</th><th scope="col"></th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.fill}><th scope="row">${row.fill}</th><td>${percent(row.curve[0])}</td><td>${percent(row.curve[Math.floor(row.curve.length / 2)])}</td>
      <td>${percent(end(row))}</td><td>${end(row) > MISLEADING * row.curve[0] ? "hides too little" : ""}</td></tr>`)}</tbody></table>
    <${Chart} x=${rows[0].levels} label=${`Probability of ${name} with every fill`} series=${rows.map((row) => ({name: row.fill, values: row.curve, dashed: end(row) > MISLEADING * row.curve[0]}))} />` : null}
    <${Waiting} state=${state} />`;
}

function View({store}) {
  const [chosen, setMethod] = viewOf(store, "map", "");
  const [fill, setFill] = viewOf(store, "fill", "auto");
  const [wanted, setLevel] = viewOf(store, "level", 3);
  const [fills, setFills] = viewOf(store, "fills", false);
  const method = present(store, chosen);
  const name = store.shown.case.target.name;
  const state = useAnswer(store, "remove", method ? {...base(store), method, fill} : null);
  const found = state.found && state.found.curve ? state.found : null;
  const level = found ? Math.max(0, Math.min(found.levels.length - 1, Math.round(wanted))) : 0;
  const bad = found ? misleading(found.ends, found.curve[0]) : [];
  const mean = found ? found.levels.map((_, i) => found.random.reduce((sum, row) => sum + row[i], 0) / found.random.length) : [];
  const middle = store.shown.case.kind === "image" ? "from the centre" : "first to last";
  return html`<div><div class="row"><${MethodSelect} store=${store} method=${method} onMethod=${setMethod} label="In the order of" />
    <${FillChoice} store=${store} fill=${fill} used=${found && found.fill} onFill=${setFill} /></div>
    ${found ? html`<label>Removed <output>${Math.round(found.levels[level] * 100)}\u00a0%</output><input type="range" id="removed" min="0" max=${found.levels.length - 1}
        value=${level} onInput=${(event) => setLevel(Number(event.target.value))} /></label>
      <p class="reading" id="reading"><strong>${percent(found.curve[level])}</strong> ${name} with ${Math.round(found.levels[level] * 100)}\u00a0% removed;
        ${" "}${percent(mean[level])} if removed at random.</p>
      <div class="panel-columns"><${Left} store=${store} found=${found} level=${level} />
      <${Chart} x=${found.levels} marked=${found.levels[level]} label=${`Probability of ${name} while parts are removed`} series=${[
        {name: `order of ${method}`, values: found.curve}, {name: "random, mean of 8", values: mean, dashed: true},
        {name: middle, values: found.centre, dashed: true}]} /></div>
      <p>The probability falls ${found.advantage.low > 0 ? "faster than" : found.advantage.high < 0 ? "slower than" : "about as fast as"} at random:
        ${" "}${points(found.advantage.mean)} percentage points on average (95 % interval ${points(found.advantage.low)} to ${points(found.advantage.high)}).</p>
      ${Object.keys(found.ends).length ? html`<p id="fills" class=${bad.includes(found.fill) ? "trouble" : "quiet"}>When everything is removed, ${name} still has
        ${" "}${Object.entries(found.ends).map(([one, end]) => `${percent(end)} (${one})`).join(", ")}.
        ${bad.length ? ` ${bad.join(" and ")} ${bad.length > 1 ? "hide" : "hides"} too little here: curves with ${bad.length > 1 ? "them" : "it"} say nothing of the map.` : ""}</p>
        <details open=${fills} onToggle=${(event) => event.currentTarget.open !== fills && setFills(event.currentTarget.open)}><summary>Compare all fills</summary>
          ${fills ? html`<${Fills} store=${store} method=${method} />` : null}</details>` : null}`
      : html`<${Waiting} state=${state} />`}</div>`;
}

export const remove = {id: "remove", title: "Remove", offline: false, View};
