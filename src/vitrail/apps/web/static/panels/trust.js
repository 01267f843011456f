// Trust: how much faster than at random the probability falls for each map, and how much the maps agree.
import {html} from "../html.js";
import {agreement} from "../maps.js";
import {points, percent} from "../numbers.js";
import {viewOf} from "../store.js";
import {FillChoice, Waiting, base, useAnswer} from "./asking.js";
import {misleading} from "./remove.js";

/** Which map to believe here, as a sentence. */
export function verdict(rows) {
  const sure = rows.filter((row) => row.low > 0).sort((a, b) => b.mean - a.mean);
  if (!rows.length) return "";
  if (!sure.length) return "On this input no map is clearly better than a random order: believe none of them.";
  const close = sure.filter((row) => row !== sure[0] && row.high > sure[0].mean);
  const also = close.length ? ` ${close.map((row) => row.trust).join(" and ")} ${close.length > 1 ? "are" : "is"} about as good.` : "";
  return `On this input believe ${sure[0].trust}: the probability falls fastest in its order.${also}`;
}

const word = (correlation) => (correlation > 0.7 ? "agree" : correlation > 0.3 ? "agree in part" : "disagree");

/** How much the maps agree, as a sentence. */
function agreed(names, matrix) {
  const pairs = [];
  for (let i = 0; i < names.length; i++) for (let j = i + 1; j < names.length; j++) pairs.push(matrix[i][j]);
  if (!pairs.length) return "";
  const mean = pairs.reduce((a, b) => a + b, 0) / pairs.length;
  return `The maps ${word(mean)} on this input: ${mean.toFixed(2)} on average (1 means the same order of importance, 0 none in common).`;
}

function View({store}) {
  const [fill, setFill] = viewOf(store, "fill", "auto");
  const {methods} = store.shown.asked;
  const state = useAnswer(store, "compare", {...base(store), methods: methods.filter((name) => !store.shown.missing.has(name)), fill});
  const events = state.found ? state.found.events : [];
  const rows = events.filter((event) => event.trust);
  const most = Math.max(0.05, ...rows.map((row) => Math.max(Math.abs(row.low), Math.abs(row.high))));
  const names = state.found && state.found.names;
  const bad = state.found && state.found.ends ? misleading(state.found.ends, state.found.start) : [];
  const consensus = store.shown.maps.get("consensus");
  const x = (value) => 150 + (value / most) * 140;
  return html`<div><${FillChoice} store=${store} fill=${fill} used=${state.found && state.found.fill} onFill=${setFill} />
    ${rows.length ? html`<table class="plain trust" id="trust"><caption>How much faster the probability of ${store.shown.case.target.name} falls than at random,
      in percentage points with a 95 % interval</caption><tbody>${rows.map((row) => html`<tr key=${row.trust}><th scope="row">${row.trust}</th>
      <td>${points(row.mean)} (${points(row.low)} to ${points(row.high)})</td><td aria-hidden="true"><svg viewBox="0 0 300 20" class="interval">
        <line x1="150" x2="150" y1="0" y2="20" class="zero" /><line x1=${x(row.low)} x2=${x(row.high)} y1="10" y2="10" class="reach" />
        <circle cx=${x(row.mean)} cy="10" r="5" class="dot" /></svg></td></tr>`)}</tbody></table>` : null}
    ${!state.progress && rows.length ? html`<p id="verdict"><strong>${verdict(rows)}</strong></p>` : null}
    ${state.found && bad.includes(state.found.fill) ? html`<p class="trouble">${state.found.fill} hides too little here: without any picture the class still has ${percent(state.found.ends[state.found.fill])}. Believe these numbers less.</p>` : null}
    ${names && names.length > 1 ? html`<p>${agreed(names, state.found.agreement)}</p><div class="scroll" tabindex="0" role="region" aria-label="Agreement of the maps"><table class="plain matrix">
      <thead><tr><td></td>${names.map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead><tbody>${names.map((name, i) => html`<tr key=${name}>
      <th scope="row">${name}</th>${state.found.agreement[i].map((value, j) => html`<td key=${j}>${value.toFixed(2)}</td>`)}</tr>`)}</tbody></table></div>` : null}
    ${agreement(consensus, store.shown.case.kind) ? html`<p>consensus: ${agreement(consensus, store.shown.case.kind)}</p>` : null}
    <${Waiting} state=${state} /></div>`;
}

export const trust = {id: "trust", title: "Trust", offline: false, View};
