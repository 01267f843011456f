"""How well, and how fast, explanations name what the answers of a language model rest on.

Without seconds, but resumable and with intervals: `vitrail bench run -m ./lm -d people --protocol answers`.

    python benchmarks/answers_quality.py --model ./lm --contexts 100 --sentences 16 [--json FILE]

Three tables. `passages`: whole generated answers about the sentences of a context, by the linear datamodeling score and
the log-probability without the best sentences, on ablations that nothing was fitted to. `needle` and `variables`: one
known sentence or a known chain of them; only answers that are right count, and how many are is printed. Seeds below 0
(`--tune`) are for choosing a method, the others for reporting.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.evaluate import answers
from vitrail.evaluate.answers import PRIORS, Scores, ask, by_method, difference, measure
from vitrail.evaluate.data import contexts

METHODS: dict[str, Scores] = {
    **PRIORS,
    "gae": by_method("gae"),
    "gae(readout=gradient)": by_method("gae", readout="gradient"),
    "tokentm": by_method("tokentm"),
    "absolute_gradient": by_method("absolute_gradient"),
    "attn_lrp": by_method("attn_lrp"),
    "attn_lrp, log-odds": by_method("attn_lrp", scalar="log_odds"),
    "gae, log-odds": by_method("gae", scalar="log_odds"),
    "tokentm, log-odds": by_method("tokentm", scalar="log_odds"),
    "input_x_gradient": by_method("input_x_gradient"),
    "attcat": by_method("attcat"),
    "soft_ablation": by_method("soft_ablation"),
    "soft_ablation(presence=0.1)": by_method("soft_ablation", presence=0.1),
    "ifr": by_method("ifr"),
    "flashtrace": by_method("flashtrace"),
    "rollout": by_method("rollout"),
    "sentence_drop": by_method("sentence_drop"),
    "context_cite": by_method("context_cite", batch=16),
}
REFERENCE = "context_cite"


MAKE = {
    "passages": lambda seed, given: contexts.people(seed, sentences=given.sentences),
    "needle": lambda seed, given: contexts.needle(seed, sentences=given.sentences),
    "four needles": lambda seed, given: contexts.needle(seed, sentences=given.sentences, needles=4),
    "long needle": lambda seed, given: contexts.needle(seed, sentences=4 * given.sentences),
    "variables": lambda seed, given: contexts.variables(seed, sentences=given.sentences),
}


ABLATED = ("passages",)
"""Kinds of questions whose answers are also measured on ablations."""


def run(kind: str, model: Any, tokenizer: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Every method on every question that the model answers, rightly where the right answer is known."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in given.method or METHODS}
    found, kept, asked = [], [], 0
    first = 1_000_000 if given.tune else 0
    while len(found) < given.contexts and asked < 6 * given.contexts and time.time() < given.deadline:
        question = ask(model, tokenizer, MAKE[kind](first + asked, given), max_new_tokens=given.new)
        asked += 1
        if question.right is False:
            continue
        found.append(question)
        known = answers.ablations_of(model, question, given.ablations) if kind in ABLATED else None
        for name in rows:
            rows[name].append(measure(model, question, METHODS[name], known, pool=given.pool).row())
        if given.json:  # a run that is cut short leaves something
            given.json.with_suffix(".part").write_text(json.dumps(rows))
        if given.raw and known is not None:
            kept.append(raw(model, question, known, list(rows)))
            given.raw.write_text(json.dumps(kept))
    if not found:
        return {"asked": asked, "used": 0}
    used = len(found)
    length = float(np.mean([len(q.ids) for q in found]))
    print(f"\n{kind}: {used} questions of {asked} asked, {length:.0f} tokens on average", flush=True)
    print(table(rows), flush=True)
    return {"asked": asked, "used": used, "tokens": length, "rows": rows}


def raw(model: Any, question: Any, known: Any, names: list[str]) -> dict[str, Any]:
    """The tokens' scores in each sentence by every method, and what became of the answer, to look for other forms."""
    scores = {name: METHODS[name](model, question) for name in names if name not in (REFERENCE, "sentence_drop")}
    parts = {name: [one[a:b].tolist() for a, b in question.sources] for name, one in scores.items()}
    return {"keep": known.keep.int().tolist(), "values": known.values.tolist(), "scores": parts}


def table(rows: dict[str, list[dict[str, float]]]) -> str:
    """Means of all columns, and the difference to context_cite with its interval where both are known."""
    columns = [c for c in next(iter(rows.values()))[0] if any(np.isfinite(r[c]) for one in rows.values() for r in one)]
    lines = [f"| method | {' | '.join(columns)} | lds - 0.9 context_cite | drop@3 - context_cite |",
             "|---|" + "---:|" * (len(columns) + 2)]  # fmt: skip
    for name, found in rows.items():
        means = [f"{np.nanmean([row[c] for row in found]):.3f}" for c in columns]
        against = [_against(rows, name, "lds", 0.9), _against(rows, name, "drop@3", 1.0)]
        lines.append(f"| {name} | {' | '.join(means)} | {' | '.join(against)} |")
    return "\n".join(lines)


def _against(rows: dict[str, list[dict[str, float]]], name: str, column: str, share: float) -> str:
    if REFERENCE not in rows or name == REFERENCE or column not in rows[name][0]:
        return ""
    ours, theirs = ([row[column] for row in rows[one]] for one in (name, REFERENCE))
    mean, low, high = difference(ours, theirs, share=share)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def main() -> None:
    """Measure everything that the time allows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--contexts", type=int, default=100)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--ablations", type=int, default=64)
    parser.add_argument("--new", type=int, default=24, help="tokens of an answer at most")
    parser.add_argument("--kind", action="append", choices=MAKE)
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--pool", default="sum", choices=answers.POOLS)
    parser.add_argument("--tune", action="store_true", help="other contexts, to choose by")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--raw", type=Path, help="keep the scores of all sentences here")
    given = parser.parse_args()
    given.deadline = time.time() + 60 * given.minutes
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(given.device).eval()
    results = {}
    for kind in given.kind or MAKE:
        results[kind] = run(kind, model, tokenizer, given)
        if given.json:
            given.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
