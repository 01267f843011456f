// The panels, in the order of their tabs. A panel is one object: `id`, `title`, `offline` (whether it works without a
// server, from the results in the page alone), `View`, a component that gets the store, and where it is not for every answer
// that has classes `fits`, which gets the case. Adding one: its file, its import and its place here.
import {answer} from "./answer.js";
import {whatIf} from "./whatif.js";
import {remove} from "./remove.js";
import {trust} from "./trust.js";
import {compare} from "./compare.js";
import {contrast} from "./contrast.js";
import {layers} from "./layers.js";
import {attention} from "./attention.js";
import {share} from "./share.js";

export const PANELS = [answer, whatIf, remove, trust, compare, contrast, layers, attention, share];
