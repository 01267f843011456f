// Answer: what a model writes after a text or about a picture; point at one of its words, and what it rests on is shaded.
import {html, useEffect, useMemo, useState} from "../html.js";
import {wordColour} from "../colours.js";
import {Legend, PictureMap, useDark} from "../maps.js";
import {percent, range, score, unpack} from "../numbers.js";
import {hereOf, viewOf} from "../store.js";
import {Waiting, plainBase, useAnswer} from "./asking.js";

const LENGTHS = [8, 16, 32, 48];

/** The text with the tokens shaded that a word of the answer rests on. */
function Sources({prompt, values, look}) {
  const dark = useDark();
  const most = range(values).most || 1;
  const signed = values.some((value) => value < 0);
  return html`<p class="sentence" id="sources" aria-label="The text, shaded by what the word rests on" role="img">${prompt.map((token, i) => {
    const value = values[i] / most;
    const style = Math.abs(value) < Math.max(look.threshold, 0.02) ? {} : wordColour(look.palette, value, signed, dark);
    return html`<span key=${i} class="piece" style=${style} title=${score(values[i], signed)}>${token}</span>`;
  })}</p><${Legend} map=${{values, signed, fine: null}} look=${look} kind="text" />`;
}

function Length({length, onLength}) {
  return html`<label>Write at most <select id="answer-length" value=${length} onChange=${(event) => onLength(Number(event.target.value))}>
    ${[...new Set([...LENGTHS, length])].sort((a, b) => a - b).map((count) => html`<option key=${count} value=${count}>${count}</option>`)}</select> tokens</label>`;
}

/** The words of the answer; the one that is pointed at is pressed. */
function Words({units, at, onWord}) {
  return html`<p class="quiet">Point at a word of the answer, or move to it with the Tab key.</p>
    <div class="answer-words" role="group" aria-label="The answer" id="answer-words">${units.map((unit, i) => html`<button type="button" class="token" key=${i} aria-pressed=${i === at}
      onPointerEnter=${() => onWord(i)} onFocus=${() => onWord(i)} onClick=${() => onWord(i)}>${unit.text || "\u23ce"}</button>`)}</div>
    <h2>What \u201c${units[at].text}\u201d rests on</h2>`;
}

/** The patches and the words of the question that one word rests on. */
function Rests({found, one, word, store}) {
  const values = useMemo(() => unpack(one.scores).values, [one]);
  const map = useMemo(() => one.patches && {values: unpack(one.patches).values, signed: false, fine: null}, [one]);
  const about = {picture: found.picture, size: found.size, grid: one.grid};
  return html`<div class="gallery image">${map ? html`<figure class="map" id="patches"><${PictureMap} about=${about} map=${map} look=${store.look} pointed=${store.pointed}
        onPoint=${(cell) => store.point(cell)} label=${`The picture, shaded by what ${word} rests on`} />
      <figcaption><strong>picture</strong> <output class="value">${store.pointed === null || store.pointed >= map.values.length ? "" : score(map.values[store.pointed], false)}</output></figcaption>
      <${Legend} map=${map} look=${store.look} /></figure>` : html`<p class="quiet">The patches of this picture have no places that could be shown.</p>`}
    <div><p><strong>question</strong></p><${Sources} prompt=${found.prompt} values=${values} look=${store.look} /></div></div>
    <p class="quiet">By ${found.method}. The colours of picture and question are scaled apart.</p>`;
}

/** A picture is asked about; the question belongs to this picture. */
function Question({store}) {
  const [question, setQuestion] = hereOf(store, "question", "");
  const [typed, setTyped] = useState(question);
  useEffect(() => setTyped(question), [question]);
  const [length, setLength] = viewOf(store, "length", 16);
  const [word, setWord] = hereOf(store, "word", 0);
  const {input, model} = plainBase(store);
  const state = useAnswer(store, "answer", question ? {input, model, length, question} : null);
  const found = state.found && state.found.units ? state.found : null;
  const at = found ? Math.max(0, Math.min(word, found.units.length - 1)) : 0;
  const one = found && found.events.find((event) => event.word === at);
  const go = (event) => { event.preventDefault(); if (typed.trim()) setQuestion(typed.trim()); };
  return html`<div><form onSubmit=${go}><label class="search">Question about the picture <input id="question" value=${typed} maxlength="1000" onInput=${(event) => setTyped(event.target.value)} /></label>
      <div class="row"><button type="submit" class="main" id="ask" disabled=${!typed.trim()}>Ask</button><${Length} length=${length} onLength=${setLength} /></div></form>
    ${found ? html`<${Words} units=${found.units} at=${at} onWord=${setWord} />
      ${one ? html`<${Rests} found=${found} one=${one} word=${found.units[at].text} store=${store} />` : html`<${Waiting} state=${state} />`}`
      : html`<${Waiting} state=${state} />`}</div>`;
}

function Continuation({store}) {
  const [length, setLength] = viewOf(store, "length", 16);
  const [word, setWord] = hereOf(store, "word", 0);
  const {input, model} = plainBase(store);
  const state = useAnswer(store, "answer", {input, model, length});
  const found = state.found && state.found.scores ? state.found : null;
  const table = useMemo(() => found && unpack(found.scores), [found]);
  const at = found ? Math.max(0, Math.min(word, found.units.length - 1)) : 0;
  const width = table ? table.shape[1] : 0;
  const cited = found ? found.cited[at] : [];
  return html`<div><${Length} length=${length} onLength=${setLength} />
    ${found ? html`<${Words} units=${found.units} at=${at} onWord=${setWord} />
      <${Sources} prompt=${found.prompt} values=${table.values.subarray(at * width, (at + 1) * width)} look=${store.look} />
      <ol class="cited" aria-live="polite">${cited.map((one) => html`<li key=${one.text}>${percent(one.share)} ${one.source}: ${one.text}</li>`)}
        ${cited.length ? "" : html`<li class="none">No passage speaks for this word.</li>`}</ol>
      <p class="quiet">By ${found.method}. ${percent(found.earlier[at])} of it lies on words of the answer before this one; the first token of the text holds ${percent(found.sink[at])} of the scores on the text.</p>`
      : html`<${Waiting} state=${state} />`}</div>`;
}

const View = ({store}) => (store.shown.case.task === "asking" ? html`<${Question} store=${store} />` : html`<${Continuation} store=${store} />`);
const fits = (about) => about.task === "causal" || about.task === "asking";
export const answer = {id: "answer", title: "Answer", offline: false, View, fits};
