// Compare: pin what is on the screen, then change the class, the model, the input or the text, and see both.
import {html, useState} from "../html.js";
import {MapView} from "../maps.js";
import {percent} from "../numbers.js";

const title = (one) => `${one.case.target.name}, ${percent(one.case.target.probability)} \u00b7 ${one.case.model.split("/").pop()}`;

function View({store}) {
  const [swipe, setSwipe] = useState(50);
  const [chosen, setChosen] = useState("");
  const {pinned, shown} = store;
  const pin = () => { store.pinned = {...shown, maps: new Map(shown.maps)}; store.changed(); };
  const both = pinned ? shown.asked.methods.filter((name) => shown.maps.has(name) && pinned.maps.has(name)) : [];
  const method = both.includes(chosen) ? chosen : both[0];
  const same = pinned && pinned.case.kind === shown.case.kind;
  const overlay = same && shown.case.kind === "image";
  const part = (one, label) => html`<figure><${MapView} about=${one.case} map=${one.maps.get(method)} look=${store.look}
    pointed=${one.case.grid && String(one.case.grid) !== String(shown.case.grid) ? null : store.pointed} onPoint=${(cell) => store.point(cell)} label=${`${method}, ${label}`} />
    <figcaption><strong>${label}</strong> ${title(one)}</figcaption></figure>`;
  return html`<div><div class="row"><button type="button" id="pin" onClick=${pin}>Pin what is shown</button>
    ${pinned ? html`<button type="button" onClick=${() => { store.pinned = null; store.changed(); }}>Unpin</button>` : null}
    ${both.length ? html`<label>Map <select value=${method} onChange=${(event) => setChosen(event.target.value)}>${both.map((name) => html`<option key=${name}>${name}</option>`)}</select></label>` : null}</div>
    ${pinned ? null : html`<p>Pin this answer, then choose another class, model, picture or text: both are shown side by side.</p>`}
    ${pinned && !same ? html`<p class="quiet">The pinned answer is of another kind of input.</p>` : null}
    ${same && !both.length ? html`<p class="quiet">No method is on both sides: choose the same one.</p>` : null}
    ${same && method ? html`<div class=${`pair ${shown.case.kind}`}>${part(pinned, "pinned")}${part(shown, "now")}
      ${overlay ? html`<figure><div class="swipe"><${MapView} about=${pinned.case} map=${pinned.maps.get(method)} look=${store.look} pointed=${null} onPoint=${() => {}} label="pinned, left of the slider" />
        <div class="over" style=${{clipPath: `inset(0 0 0 ${swipe}%)`}}><${MapView} about=${shown.case} map=${shown.maps.get(method)} look=${store.look} pointed=${null} onPoint=${() => {}} label="now, right of the slider" /></div></div>
        <figcaption><label>Swipe <input type="range" id="swipe" min="0" max="100" value=${swipe} onInput=${(event) => setSwipe(Number(event.target.value))} /></label></figcaption></figure>` : null}</div>` : null}</div>`;
}

export const compare = {id: "compare", title: "Compare", offline: false, View};
