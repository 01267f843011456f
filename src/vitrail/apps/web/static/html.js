// Preact with htm: markup as tagged templates, no build step.
import {h, render, Fragment} from "./vendor/preact.js";
import {useState, useEffect, useRef, useMemo, useLayoutEffect} from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export {h, render, Fragment, useState, useEffect, useRef, useMemo, useLayoutEffect};
