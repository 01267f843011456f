// A panel's own question to the server: asked again when what it depends on changes, older answers dropped.
import {html, useEffect, useState} from "../html.js";
import {ask} from "../api.js";

/**
 * The events of an action, folded into one object.
 * @param {object|null} asked null asks nothing
 */
export function useAnswer(store, route, asked) {
  const [state, setState] = useState({key: "", found: null, error: "", progress: null});
  const key = asked ? JSON.stringify([route, asked]) : "";
  useEffect(() => {
    if (!asked) return undefined;
    const control = new AbortController();
    let found = {events: []};
    setState({key, found: null, error: "", progress: {words: "asking the model", share: 0}});
    ask(route, asked, store.files, (event) => {
      if (control.signal.aborted) return;
      if ("progress" in event) {
        setState((now) => ({...now, progress: {words: event.words, share: event.progress}}));
        return;
      }
      found = {...found, ...event, events: [...found.events, event]};
      setState({key, found, error: "", progress: {words: "computing", share: 1}});
    }, control.signal)
      .then(() => { if (!control.signal.aborted) setState((now) => ({...now, progress: null})); })
      .catch((error) => {
        if (!control.signal.aborted) setState({key, found: null, error: error.message, progress: null});
      });
    return () => control.abort();
  }, [key]);
  return state.key === key ? state : {key, found: null, error: "", progress: asked ? {words: "asking the model", share: 0} : null};
}

/** What is shown while an answer is on its way, or instead of one. */
export function Waiting({state}) {
  if (state.error) return html`<p class="trouble" role="alert">${state.error}</p>`;
  if (!state.progress) return null;
  return html`<p class="quiet progress" role="status"><progress max="1" value=${state.progress.share} aria-label=${state.progress.words}></progress> ${state.progress.words}</p>`;
}

/** The fields that every question shares, of what is on the screen. */
export function base(store) {
  const {input, model, preset} = store.shown.asked;
  return {input, model, preset, target: store.shown.case.target.index};
}

/** The same without the version of the methods, which some actions do not take. */
export function plainBase(store) {
  const {input, model, target} = base(store);
  return {input, model, target};
}

/** The fills that are offered. */
export function FillChoice({store, fill, onFill, used}) {
  if (store.shown.case.kind !== "image") return null;
  return html`<label>Removed parts become <select value=${fill} onChange=${(event) => onFill(event.target.value)}>
    <option value="auto">what hides most${used && fill === "auto" ? ` (${used})` : ""}</option>
    ${(store.about ? store.about.fills : []).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`;
}

/** One of the methods on the screen. */
export function MethodSelect({store, method, onMethod, label = "Map"}) {
  return html`<label>${label} <select value=${method} onChange=${(event) => onMethod(event.target.value)}>
    ${[...store.shown.maps.keys()].filter((name) => store.shown.asked.methods.includes(name))
      .map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`;
}

/** The method that is chosen if it is on the screen, else the first. */
export function present(store, method) {
  const names = store.shown.asked.methods.filter((name) => store.shown.maps.has(name));
  return names.includes(method) ? method : names[0];
}
