// Share: the address of what is on the screen, the same as Python or as a command, and files.
import {html, useState} from "../html.js";
import {ask} from "../api.js";
import {toAddress} from "../store.js";
import {base} from "./asking.js";

const NAMES = {png: "PNG figure", svg: "SVG figure", pdf: "PDF figure", html: "page without a server", json: "numbers (JSON)"};
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The input as one would name it on a command line. */
function source(store) {
  const {input} = store.shown.asked;
  if (input.startsWith("text:")) return input.slice(5);
  if (store.shown.case.kind === "text") return store.examples.text[input.slice(8)];
  return input.startsWith("example:") ? `${input.slice(8)}.jpg` : (store.tray.find((one) => one.input === input) || {name: "picture.jpg"}).name;
}

const isExample = (store) => store.shown.asked.input.startsWith("example:");

/** The command that computes the same maps. */
export function command(store) {
  const {asked, case: about} = store.shown;
  const methods = asked.methods.map((name) => `--method ${name}`).join(" ");
  const preset = asked.preset === "recommended" ? "" : ` --preset ${asked.preset}`;
  const input = isExample(store) && about.kind === "image" ? `"$(python -c 'import vitrail; print(vitrail.zoo.example("${asked.input.slice(8)}"))')"` : quoted(source(store));
  return `vitrail explain ${input} -m ${quoted(asked.model)} ${methods} -t ${about.target.index}${preset}`;
}

/** The Python that computes the same maps. */
export function python(store) {
  const {asked, case: about} = store.shown;
  const picture = about.kind === "image";
  const given = picture && isExample(store) ? `vitrail.zoo.example(${JSON.stringify(asked.input.slice(8))})` : JSON.stringify(source(store));
  const preset = asked.preset === "recommended" ? "" : `, preset="${asked.preset}"`;
  return [
    "import vitrail", ...(picture ? ["from PIL import Image"] : []), "from vitrail.models.loading import load", "",
    `loaded = load(${JSON.stringify(asked.model)})`,
    picture ? `sample = loaded.image(Image.open(${given}).convert("RGB"))` : `sample = loaded.text(${given})`,
    `maps = vitrail.compare(loaded.model, sample.inputs, ${JSON.stringify(asked.methods)}, target=${about.target.index}${preset})`,
    picture ? "maps.plot(sample.picture)" : "maps.plot()",
  ].join("\n");
}

async function save(store, form) {
  const asked = {...base(store), methods: store.shown.asked.methods, form, palette: store.look.palette};
  await ask("download", asked, store.files, (event) => {
    if (!event.file) return;
    const bytes = Uint8Array.from(atob(event.base64), (letter) => letter.charCodeAt(0));
    const link = Object.assign(document.createElement("a"), {href: URL.createObjectURL(new Blob([bytes], {type: event.type})), download: event.file});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });
}

function Copied({title, text, id}) {
  const [said, setSaid] = useState("");
  const copy = () => navigator.clipboard.writeText(text).then(() => setSaid("copied"), () => setSaid("select the text and copy it"));
  return html`<div class="copy"><h2>${title}</h2><pre tabindex="0" id=${id} aria-label=${title}>${text}</pre><button type="button" onClick=${copy}>Copy</button> <span role="status" class="quiet">${said}</span></div>`;
}

function View({store}) {
  const [state, setState] = useState("");
  const own = store.asked.input.startsWith("own:");
  const address = location.href.split("#")[0] + toAddress(store);
  const get = (form) => {
    setState(`making ${NAMES[form] || form}`);
    save(store, form).then(() => setState(""), (error) => setState(error.message));
  };
  return html`<div><${Copied} title="Address" id="share-address" text=${address} />
    ${own ? html`<p class="trouble">A picture from this device is not part of the address: whoever opens it has to choose the picture.</p>` : null}
    <${Copied} title="Python" id="share-python" text=${python(store)} /><${Copied} title="Command" id="share-command" text=${command(store)} />
    <h2>Files</h2><div class="row">${(store.about ? store.about.forms : []).map((form) => html`<button type="button" key=${form} id=${`download-${form}`} onClick=${() => get(form)}>${NAMES[form] || form}</button>`)}</div>
    <p role="status" class="quiet">${state}</p></div>`;
}

export const share = {id: "share", title: "Share and save", offline: false, View};
