// Answer: what a language model writes after the text; point at one of its words, and the text it rests on is shaded.
import {html, useMemo} from "../html.js";
import {wordColour} from "../colours.js";
import {Legend, useDark} from "../maps.js";
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

function View({store}) {
  const [length, setLength] = viewOf(store, "length", 16);
  const [word, setWord] = hereOf(store, "word", 0);
  const {input, model} = plainBase(store);
  const state = useAnswer(store, "answer", {input, model, length});
  const found = state.found && state.found.scores ? state.found : null;
  const table = useMemo(() => found && unpack(found.scores), [found]);
  const at = found ? Math.max(0, Math.min(word, found.units.length - 1)) : 0;
  const width = table ? table.shape[1] : 0;
  const cited = found ? found.cited[at] : [];
  return html`<div><label>Write at most <select id="answer-length" value=${length} onChange=${(event) => setLength(Number(event.target.value))}>
      ${[...new Set([...LENGTHS, length])].sort((a, b) => a - b).map((count) => html`<option key=${count} value=${count}>${count}</option>`)}</select> tokens</label>
    ${found ? html`<p class="quiet">Point at a word of the answer, or move to it with the Tab key.</p>
      <div class="answer-words" role="group" aria-label="The answer" id="answer-words">${found.units.map((unit, i) => html`<button type="button" class="token" key=${i} aria-pressed=${i === at}
        onPointerEnter=${() => setWord(i)} onFocus=${() => setWord(i)} onClick=${() => setWord(i)}>${unit.text || "\u23ce"}</button>`)}</div>
      <h2>What \u201c${found.units[at].text}\u201d rests on</h2>
      <${Sources} prompt=${found.prompt} values=${table.values.subarray(at * width, (at + 1) * width)} look=${store.look} />
      <ol class="cited" aria-live="polite">${cited.map((one) => html`<li key=${one.text}>${percent(one.share)} ${one.source}: ${one.text}</li>`)}</ol>
      <p class="quiet">By ${found.method}. ${percent(found.earlier[at])} of it lies on words of the answer before this one; the first token of the text holds ${percent(found.sink[at])} of the scores on the text.</p>`
      : html`<${Waiting} state=${state} />`}</div>`;
}

const fits = (about) => about.task === "causal";
export const answer = {id: "answer", title: "Answer", offline: false, View, fits};
