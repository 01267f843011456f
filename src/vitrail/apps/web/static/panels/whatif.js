// What if: drag over the picture or click words, and see the probabilities change.
import {html, useMemo, useState} from "../html.js";
import {Canvas, Sentence, cellAt, useDrawing} from "../maps.js";
import {drawRemoved, outline} from "../drawing.js";
import {percent, points} from "../numbers.js";
import {hereOf, viewOf} from "../store.js";
import {FillChoice, Waiting, plainBase, useAnswer} from "./asking.js";

/** The cells of the rectangle between two cells. */
export function rectangle(from, to, columns) {
  const rows = [Math.floor(from / columns), Math.floor(to / columns)].sort((a, b) => a - b);
  const across = [from % columns, to % columns].sort((a, b) => a - b);
  const cells = [];
  for (let y = rows[0]; y <= rows[1]; y++) for (let x = across[0]; x <= across[1]; x++) cells.push(y * columns + x);
  return cells;
}

function Region({store, gone, onGone, background}) {
  const about = store.shown.case;
  const [rows, columns] = about.grid;
  const [from, setFrom] = useState(null);
  const drag = from !== null && store.pointed !== null ? rectangle(from, store.pointed, columns) : [];
  const canvas = useDrawing((element, shown, background) => {
    drawRemoved(element, shown, background, about.size, (cell) => gone.has(cell), rows, columns);
    outline(element, drag, rows, columns, "#fff");
    if (store.pointed !== null) outline(element, [store.pointed], rows, columns, "#fff");
  }, [about.picture, background], [about.picture, background, gone, from, store.pointed]);
  const flip = (cells) => {
    const next = new Set(gone);
    const all = cells.every((cell) => next.has(cell));
    for (const cell of cells) if (all) next.delete(cell); else next.add(cell);
    onGone(next);
  };
  const events = {
    onPointerDown: (event) => { event.currentTarget.setPointerCapture(event.pointerId); setFrom(cellAt(event, rows, columns)); },
    onPointerUp: (event) => {
      const to = cellAt(event, rows, columns);
      if (from !== null && to !== null) flip(rectangle(from, to, columns));
      setFrom(null);
    },
    onPointerCancel: () => setFrom(null),
  };
  const onKey = (event, cell) => {
    if ((event.key === " " || event.key === "Enter") && cell !== null) {
      event.preventDefault();
      flip([cell]);
    }
  };
  return html`<${Canvas} label="Drag over the picture to remove a region; arrow keys point, space removes" grid=${about.grid} size=${about.size}
    pointed=${store.pointed} onPoint=${(cell) => store.point(cell)} canvas=${canvas} extra=${{events, onKey}} />`;
}

function View({store}) {
  const about = store.shown.case;
  const [removed, setRemoved] = hereOf(store, "cells", [], true);
  const [fill, setFill] = viewOf(store, "fill", "auto");
  const count = about.kind === "image" ? about.grid[0] * about.grid[1] : about.tokens.text.length;
  const key = removed.join();
  const gone = useMemo(() => new Set(removed.filter((cell) => cell < count)), [key, count]);
  const setGone = (next) => setRemoved([...next].sort((a, b) => a - b));
  const cells = [...gone].sort((a, b) => a - b);
  const state = useAnswer(store, "whatif", cells.length ? {...plainBase(store), cells, fill} : null);
  const toggle = (pieces) => {
    const next = new Set(gone);
    const all = pieces.every((piece) => next.has(piece));
    for (const piece of pieces) if (all) next.delete(piece); else next.add(piece);
    setGone(next);
  };
  const first = about.kind === "image" ? "Drag over the picture." : "Click words to leave them out.";
  const kinds = about.kind === "image" ? ["patch", "patches"] : ["token", "tokens"];
  return html`<div class="panel-columns">
    <div class=${about.kind === "image" ? "small-map" : ""}>${about.kind === "image"
      ? html`<${Region} store=${store} gone=${gone} onGone=${setGone} background=${state.found && state.found.background} />`
      : html`<${Sentence} tokens=${about.tokens} look=${store.look} gone=${gone} onToggle=${toggle} pointed=${store.pointed}
          onPoint=${(cell) => store.point(cell)} label="Click words to leave them out" />`}</div>
    <div><p>${first} The model answers again without the removed parts.</p><${FillChoice} store=${store} fill=${fill} used=${state.found && state.found.fill} onFill=${setFill} />
      <div class="row"><button type="button" onClick=${() => setGone(new Set())} disabled=${!gone.size}>Put back all</button>
        <span class="quiet">${gone.size} ${kinds[gone.size === 1 ? 0 : 1]} removed</span></div>
      <div class="fixed">${state.found && state.found.after ? html`<table class="plain"><thead><tr><th scope="col">class</th><th scope="col">whole</th>
        <th scope="col">without</th><th scope="col">change</th></tr></thead><tbody>${state.found.after.map((one, i) => html`<tr key=${one.index}>
        <th scope="row">${one.name}</th><td>${percent(state.found.before[i].probability)}</td><td>${percent(one.probability)}</td>
        <td>${points(one.probability - state.found.before[i].probability)}</td></tr>`)}</tbody></table>` : html`<${Waiting} state=${state} />`}</div></div></div>`;
}

export const whatIf = {id: "what-if", title: "What if", offline: false, View};
