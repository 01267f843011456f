// Compare: two methods of one answer, or a pinned answer with another class, model, input or text; side by side and with a swipe.
import {html} from "../html.js";
import {Legend, MapView, valueAt} from "../maps.js";
import {percent, points} from "../numbers.js";
import {viewOf} from "../store.js";

const title = (one) => `${one.case.target.name}, ${percent(one.case.target.probability)} \u00b7 ${one.case.model.split("/").pop()}`;
const present = (one) => one.asked.methods.filter((name) => one.maps.has(name));

/** Which words of two sentences have no partner in the other, by the longest common subsequence. */
export function changes(before, after) {
  const long = Array.from({length: before.length + 1}, () => new Array(after.length + 1).fill(0));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      long[i][j] = before[i] === after[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1]);
    }
  }
  const gone = new Set(before.keys()), added = new Set(after.keys());
  for (let i = 0, j = 0; i < before.length && j < after.length;) {
    if (before[i] === after[j]) { gone.delete(i++); added.delete(j++); }
    else if (long[i + 1][j] >= long[i][j + 1]) i++;
    else j++;
  }
  return [gone, added];
}

/** What changed between the two, as a sentence. */
function change(first, second) {
  const [a, b] = [first.case, second.case];
  if (a.target.index !== b.target.index || a.model !== b.model || first.key === second.key) return "";
  const [before, after] = [a.target.probability, b.target.probability];
  return `${b.target.name}: ${percent(before)} pinned, ${percent(after)} now (${points(after - before)} percentage points).`;
}

/** The words of an edited text that were taken away and those that are new. */
function Edited({first, second}) {
  if (first.case.kind !== "text") return null;
  const [before, after] = [first.case.tokens.names, second.case.tokens.names];
  const [gone, added] = changes(before, after);
  if (!gone.size && !added.size) return null;
  return html`<p id="edited">${gone.size ? html`Left out: <del>${[...gone].map((i) => before[i]).join(" ")}</del>. ` : null}
    ${added.size ? html`New: <ins>${[...added].map((i) => after[i]).join(" ")}</ins>.` : null}</p>`;
}

function View({store}) {
  const [swipe, setSwipe] = viewOf(store, "swipe", 50);
  const [left, setLeft] = viewOf(store, "left", "");
  const [right, setRight] = viewOf(store, "right", "");
  const {pinned, shown} = store;
  const first = pinned || shown;
  const [ours, theirs] = [present(first), present(shown)];
  const a = ours.includes(left) ? left : ours[0];
  const b = theirs.includes(right) ? right : pinned && theirs.includes(a) ? a : theirs.find((name) => pinned || name !== a) || theirs[0];
  const same = first.case.kind === shown.case.kind;
  const sizes = same && String(first.case.grid) === String(shown.case.grid);
  const names = pinned ? ["pinned", "now"] : ["left", "right"];
  const choice = (label, names, value, onChoose) => html`<label>${label} <select id=${`side-${label}`} value=${value} onChange=${(event) => onChoose(event.target.value)}>
    ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`;
  const view = (one, method, label, linked) => html`<${MapView} about=${one.case} map=${one.maps.get(method)} look=${store.look}
    pointed=${linked && (sizes || one === shown) ? store.pointed : null} onPoint=${linked ? (cell) => store.point(cell) : () => {}} label=${label} />`;
  const part = (one, method, label) => html`<figure>${view(one, method, `${method}, ${label}`, true)}
    <figcaption><strong>${label}: ${method}</strong> ${title(one)} <span class="value">${sizes || one === shown ? valueAt(one.maps.get(method), store.pointed, one.case.tokens, store.look.words) : ""}</span></figcaption>
    <${Legend} map=${one.maps.get(method)} look=${store.look} kind=${one.case.kind} /></figure>`;
  return html`<div><div class="row"><button type="button" id="pin" onClick=${() => store.pin()}>Pin what is shown</button>
    ${pinned ? html`<button type="button" id="unpin" onClick=${() => store.unpin()}>Unpin</button>` : null}
    ${same && a && b ? html`${choice(names[0], ours, a, setLeft)}${choice(names[1], theirs, b, setRight)}` : null}</div>
    ${pinned ? null : html`<p class="quiet">Two methods of this answer. Pin it, then choose another class, model, picture or text: both are shown side by side.</p>`}
    ${same ? null : html`<p class="quiet">The pinned answer is of another kind of input.</p>`}
    ${pinned && same ? html`<p id="change">${change(first, shown)}</p><${Edited} first=${first} second=${shown} />` : null}
    ${same && a && b ? html`<div class=${`pair ${shown.case.kind}`}>${part(first, a, names[0])}${part(shown, b, names[1])}
      ${shown.case.kind === "image" ? html`<figure><div class="swipe">${view(first, a, `${names[0]}, left of the slider`, false)}
        <div class="over" style=${{clipPath: `inset(0 0 0 ${swipe}%)`}}>${view(shown, b, `${names[1]}, right of the slider`, false)}</div></div>
        <figcaption><label>Swipe <input type="range" id="swipe" min="0" max="100" value=${swipe} onInput=${(event) => setSwipe(Number(event.target.value))} /></label></figcaption></figure>` : null}</div>` : null}</div>`;
}

export const compare = {id: "compare", title: "Compare", offline: true, View};
