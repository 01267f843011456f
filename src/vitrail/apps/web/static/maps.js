// One method's map: a picture on a canvas or a sentence of shaded words, both with a pointer that all maps share.
import {html, useEffect, useLayoutEffect, useRef, useState} from "./html.js";
import {css, wordColour} from "./colours.js";
import {canvasSize, drawMap, gridOf, outline, picture, strongest} from "./drawing.js";
import {range, scale, score, wordScores} from "./numbers.js";

/** Whether the page is dark, now and after a change. */
export function useDark() {
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const tell = () => setDark(query.matches);
    query.addEventListener("change", tell);
    return () => query.removeEventListener("change", tell);
  }, []);
  return dark;
}

/** Draw once the pictures are decoded, and again when something changes. */
export function useDrawing(draw, addresses, depends) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    let alive = true;
    const found = addresses.map(picture);
    const now = () => alive && canvas.current && draw(canvas.current, ...found.map((one) => one && one.image));
    Promise.all(found.map((one) => one && one.ready)).then(now);
    return () => { alive = false; };
  }, depends);
  return canvas;
}

/** Keys that move the pointer over a grid. */
function moved(key, cell, rows, columns) {
  const at = cell === null || cell === undefined ? Math.floor(rows / 2) * columns + Math.floor(columns / 2) : cell;
  const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns};
  if (!(key in steps)) return null;
  const next = at + steps[key];
  if (key === "ArrowLeft" && at % columns === 0) return at;
  if (key === "ArrowRight" && at % columns === columns - 1) return at;
  return next < 0 || next >= rows * columns ? at : next;
}

/** The cell of a grid under the mouse or finger. */
export function cellAt(event, rows, columns) {
  const box = event.currentTarget.getBoundingClientRect();
  const y = Math.floor(((event.clientY - box.top) / box.height) * rows);
  const x = Math.floor(((event.clientX - box.left) / box.width) * columns);
  return y < 0 || x < 0 || y >= rows || x >= columns ? null : y * columns + x;
}

/** A canvas one can point at: mouse, finger or arrow keys. */
export function Canvas({label, grid, size, pointed, onPoint, canvas, zoom = 1, extra = {}}) {
  const [rows, columns] = grid;
  const [height, width] = canvasSize(size);
  const focus = pointed === null || pointed === undefined ? Math.floor(rows / 2) * columns + Math.floor(columns / 2) : pointed;
  const origin = `${(((focus % columns) + 0.5) / columns) * 100}% ${((Math.floor(focus / columns) + 0.5) / rows) * 100}%`;
  const keys = (event) => {
    const next = moved(event.key, pointed, rows, columns);
    if (next !== null) {
      event.preventDefault();
      onPoint(next);
    }
    if (extra.onKey) extra.onKey(event, pointed);
  };
  return html`<div class="frame">
    <canvas ref=${canvas} width=${width} height=${height} tabindex="0" role="img" aria-label=${label}
      style=${{transform: zoom > 1 ? `scale(${zoom})` : "none", transformOrigin: origin}}
      onPointerMove=${(event) => onPoint(cellAt(event, rows, columns))}
      onPointerLeave=${() => onPoint(null)} onKeyDown=${keys} ...${extra.events || {}}></canvas></div>`;
}

/** A bar of the colours with the numbers at its ends. */
export function Legend({map, look, kind = "image"}) {
  const dark = useDark();
  const {low, high, most} = range(map.fine ? map.fine.values : map.values);
  const ends = map.signed ? [-most, most] : [kind === "image" ? low : 0, high];
  const bar = useRef(null);
  useLayoutEffect(() => {
    const context = bar.current.getContext("2d");
    for (let x = 0; x < 64; x++) {
      const value = map.signed ? x / 31.5 - 1 : x / 63;
      context.fillStyle = kind === "image" ? css(look.palette, value, map.signed) : wordColour(look.palette, value, map.signed, dark).background;
      context.fillRect(x, 0, 1, 8);
    }
  }, [look.palette, map.signed, kind, dark]);
  return html`<div class="legend">
    <canvas ref=${bar} width="64" height="8" aria-hidden="true"></canvas>
    <span>${map.signed ? "against " : ""}${score(ends[0], map.signed)}</span><span>${score(ends[1], map.signed)}${map.signed ? " for" : ""}</span></div>`;
}

/** A map over its picture. */
export function PictureMap({about, map, look, pointed, onPoint, label}) {
  const [rows, columns] = about.grid;
  const cells = map ? gridOf(map, about.grid) : null;
  const canvas = useDrawing((element, shown) => {
    drawMap(element, shown, about.size, cells, map && map.signed, look);
    if (pointed !== null && pointed !== undefined) outline(element, [pointed], rows, columns, "#fff");
  }, [about.picture], [about.picture, map, look.palette, look.opacity, look.threshold, look.smooth, pointed]);
  const said = map ? `${label}: strongest at the ${strongest(map.values, rows, columns)}` : label;
  return html`<${Canvas} label=${said} grid=${about.grid} size=${about.size} pointed=${pointed} onPoint=${onPoint}
    canvas=${canvas} zoom=${look.zoom} />`;
}

/** The units of a sentence: whole words, or the pieces the model reads. */
export function units(tokens, whole) {
  if (!whole) return tokens.text.map((text, i) => ({text, pieces: [i], glued: tokens.glued[i], here: tokens.read_here[i]}));
  return tokens.words.map((pieces, i) => ({
    text: tokens.names[i], pieces, glued: false, here: pieces.every((piece) => tokens.read_here[piece]),
  }));
}

/** A sentence with its words shaded. */
export function Sentence({tokens, map, values, signed, look, pointed, onPoint, label, gone, onToggle}) {
  const dark = useDark();
  const shown = units(tokens, look.words);
  const own = values || (map && map.values);
  const sign = map ? map.signed : signed;
  const scores = own ? (look.words ? wordScores(own, tokens.words, sign) : [...own]) : null;
  const most = scores ? range(scores).most || 1 : 1;
  const bring = (value) => (sign ? value / most : Math.max(0, value) / most);
  const move = (event) => {
    const steps = {ArrowLeft: -1, ArrowRight: 1};
    if (!(event.key in steps)) return;
    event.preventDefault();
    const now = shown.findIndex((unit) => unit.pieces.includes(pointed));
    const next = Math.max(0, Math.min(shown.length - 1, (now < 0 ? -1 : now) + steps[event.key]));
    onPoint(shown[next].pieces[0]);
  };
  const group = onToggle ? {role: "group"} : {role: "img", tabindex: 0, onKeyDown: move};
  return html`<p class="sentence" aria-label=${label} ...${group} onPointerLeave=${() => onPoint(null)}>${shown.map((unit, i) => {
    const value = scores ? bring(scores[i]) : 0;
    const hidden = unit.here || Math.abs(value) < look.threshold;
    const style = hidden ? {} : wordColour(look.palette, value, sign, dark);
    const is = unit.pieces.includes(pointed) ? " pointed" : "";
    const cut = gone && unit.pieces.every((piece) => gone.has(piece));
    const name = `token${is}${cut ? " gone" : ""}${unit.here ? " here" : ""}`;
    const events = {onPointerEnter: () => onPoint(unit.pieces[0])};
    const space = i && !unit.glued ? " " : "";
    const note = unit.here ? "the answer is read here" : scores ? score(scores[i], sign) : "";
    return onToggle
      ? html`${space}<button type="button" class=${name} style=${style} aria-pressed=${Boolean(cut)} ...${events}
          onClick=${() => onToggle(unit.pieces)}>${unit.text}</button>`
      : html`${space}<span class=${name} style=${style} title=${note} ...${events}>${unit.text}</span>`;
  })}</p>`;
}

/** What a map says at the place that is pointed at. */
export function valueAt(map, pointed, tokens, whole) {
  if (pointed === null || pointed === undefined || !map) return "";
  if (!tokens || !whole) return score(map.values[pointed], map.signed);
  const word = tokens.words.find((pieces) => pieces.includes(pointed));
  return score(wordScores(map.values, [word || [pointed]], map.signed)[0], map.signed);
}

const verb = (share) => (share > 0.7 ? "agree" : share > 0.3 ? "agree in part" : "disagree");

/** How far the parts of a combined map agree, as a sentence; of one part, copies of the text with words blanked. */
export function agreement(map, kind) {
  if (!map || map.disagreement === null || !map.parts.length) return "";
  const share = 1 - map.disagreement;
  const what = map.parts.length > 1 ? `Its ${map.parts.length} parts` : "Its maps with other words blanked";
  return `${what} ${verb(share)} on this ${kind === "image" ? "picture" : "text"}: ${share.toFixed(2)}.`;
}

/** The name of the place that is pointed at. */
export function placeName(about, pointed, whole) {
  if (pointed === null || pointed === undefined) return "";
  if (about.kind === "image") {
    const columns = about.grid[1];
    return `Row ${Math.floor(pointed / columns) + 1}, column ${(pointed % columns) + 1}`;
  }
  const word = about.tokens.words.findIndex((pieces) => pieces.includes(pointed));
  return `\u201c${whole && word >= 0 ? about.tokens.names[word] : about.tokens.text[pointed]}\u201d`;
}

/** A map of either kind. */
export function MapView({about, map, look, pointed, onPoint, label}) {
  return about.kind === "image"
    ? html`<${PictureMap} about=${about} map=${map} look=${look} pointed=${pointed} onPoint=${onPoint} label=${label} />`
    : html`<${Sentence} tokens=${about.tokens} map=${map} look=${look} pointed=${pointed} onPoint=${onPoint} label=${label} />`;
}

/** Values brought to the range of colours, for small pictures. */
export function Tile({about, values, signed, look, label, onChoose, chosen}) {
  const cells = {values, rows: about.grid ? about.grid[0] : 1, columns: about.grid ? about.grid[1] : values.length};
  const canvas = useRef(null);
  useLayoutEffect(() => {
    const element = canvas.current;
    const context = element.getContext("2d");
    const bring = scale(values, signed);
    for (let i = 0; i < values.length; i++) {
      context.fillStyle = css(look.palette, bring(values[i]), signed);
      context.fillRect(i % cells.columns, Math.floor(i / cells.columns), 1, 1);
    }
  }, [values, look.palette]);
  return html`<button type="button" class="tile" aria-label=${label} title=${label} aria-pressed=${chosen} onClick=${onChoose}>
    <canvas ref=${canvas} width=${cells.columns} height=${cells.rows}></canvas></button>`;
}
