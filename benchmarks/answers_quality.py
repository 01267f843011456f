"""How well, and how fast, explanations name what the answers of a language model rest on.

With intervals for every number: `vitrail bench run -m ./lm -d people --protocol answers`. This script adds seconds and
the differences to context_cite, and several processes share the work on one GPU:

    for i in 0 1 2 3; do python benchmarks/answers_quality.py --model ./lm --part $i/4 --lines lines.$i & done; wait
    python benchmarks/answers_quality.py --table lines.*

`people`: whole generated answers about the sentences of a context, by the linear datamodeling score and the
log-probability without the best sentences, on ablations that nothing was fitted to. `needle` and `variables`: one known
sentence or a known chain of them; only answers that are right count, and how many are is printed. Every question is one
line of the file, and a question that has its line is not asked again. Seconds are meant for a process that runs alone.
Tune on other contexts than those reported: `--first 1000000`.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answers_measured import ablations_of, by_method, difference, measure

from vitrail.evaluate import answers
from vitrail.evaluate.answers import PRIORS, Scores, ask
from vitrail.evaluate.data import contexts
from vitrail.evaluate.data.examples import ContextExample

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
    "integrated_gradients(steps=8)": by_method("integrated_gradients", steps=8),
    "attcat": by_method("attcat"),
    "soft_ablation": by_method("soft_ablation"),
    "soft_ablation(share=0)": by_method("soft_ablation", share=0.0),
    "soft_ablation(presence=0.1)": by_method("soft_ablation", presence=0.1),
    "soft_ablation(presence=0.1, share=0)": by_method("soft_ablation", presence=0.1, share=0.0),
    "ifr": by_method("ifr"),
    "flashtrace": by_method("flashtrace"),
    "rollout": by_method("rollout"),
    "sentence_drop": by_method("sentence_drop", batch=16),
    "context_cite": by_method("context_cite", batch=16),
}
REFERENCE = "context_cite"
KINDS: dict[str, Callable[[int], ContextExample]] = {
    "people": lambda seed: contexts.people(seed, sentences=15),
    "needle": lambda seed: contexts.needle(seed, sentences=16),
    "four needles": lambda seed: contexts.needle(seed, sentences=16, needles=4),
    "long needle": lambda seed: contexts.needle(seed, sentences=98),
    "four long needles": lambda seed: contexts.needle(seed, sentences=98, needles=4),
    "variables": lambda seed: contexts.variables(seed, sentences=16),
}
ABLATED = ("people",)
"""Kinds of questions whose answers are also measured on ablations."""
ASKED = {"four needles": 1.25, "four long needles": 2.0, "variables": 3.0}
"""How many questions are asked for one that counts; the rest of the answers is wrong."""


def asked(given: argparse.Namespace, model: Any, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """One line for each question of this part that has none yet."""
    known = {(line["kind"], line["seed"]) for line in _lines([given.lines] if given.lines.exists() else [])}
    part, parts = given.part
    for kind in given.kind:
        last = given.first + round(ASKED.get(kind, 1.0) * given.contexts)
        for seed in range(given.first + part, last, parts):
            if time.monotonic() > given.deadline:
                return
            if (kind, seed) not in known:
                yield {"kind": kind, "seed": seed, **answered(model, tokenizer, kind, seed, given)}


def answered(model: Any, tokenizer: Any, kind: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """What every method reached on one question; nothing where the model's answer is wrong."""
    question = ask(model, tokenizer, KINDS[kind](seed), max_new_tokens=given.new)
    if question.right is False:
        return {"right": False}
    known = ablations_of(model, question, given.ablations) if kind in ABLATED else None
    names = [name for name in given.method or METHODS if kind in ABLATED or name != REFERENCE]
    rows = {name: measure(model, question, METHODS[name], known, pool=given.pool).row() for name in names}
    return {"right": True, "tokens": len(question.ids), "rows": rows}


def _lines(paths: list[Path]) -> list[dict[str, Any]]:
    """The lines of all files; a line that was cut off is left out."""
    found = []
    for text in (line for path in paths for line in path.read_text().splitlines()):
        try:
            found.append(json.loads(text))
        except ValueError:
            print(f"left out: {text[:60]!r} is cut off")
    return found


def tables(paths: list[Path], count: int) -> str:
    """One table for each kind, of the first questions that were answered rightly."""
    once = {(line["kind"], line["seed"]): line for line in _lines(paths)}
    lines = sorted(once.values(), key=lambda line: line["seed"])
    found = []
    for kind in [kind for kind in KINDS if any(line["kind"] == kind for line in lines)]:
        every = [line for line in lines if line["kind"] == kind]
        right = [line for line in every if line["right"]][:count]
        if not right:
            found.append(f"\n{kind}: none of {len(every)} answered rightly")
            continue
        length = np.mean([line["tokens"] for line in right])
        rows = {name: [line["rows"][name] for line in right] for name in right[0]["rows"]}
        answered_all = sum(line["right"] for line in every)
        found.append(f"\n{kind}: {answered_all} of {len(every)} answered rightly, {len(right)} of them here, ")
        found[-1] += f"{length:.0f} tokens on average\n{table(rows)}"
    return "\n".join(found)


def table(rows: dict[str, list[dict[str, float]]]) -> str:
    """Means of all columns, the median of seconds, and differences to context_cite with their intervals."""
    columns = [c for c in next(iter(rows.values()))[0] if any(np.isfinite(r[c]) for one in rows.values() for r in one)]
    against = [("lds", 0.9), ("drop@1", 1.0), ("drop@3", 1.0)] if REFERENCE in rows else []
    heads = [*columns, *(f"{column} - {share} context_cite" for column, share in against)]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name, found in rows.items():
        # The first call of a process compiles and measures, which a median of seconds leaves out.
        mean = {c: np.nanmedian if c == "seconds" else np.nanmean for c in columns}
        means = [f"{mean[c]([row[c] for row in found]):.3f}" for c in columns]
        beside = [_against(rows, name, column, share) for column, share in against]
        lines.append(f"| {name} | {' | '.join([*means, *beside])} |")
    return "\n".join(lines)


def _against(rows: dict[str, list[dict[str, float]]], name: str, column: str, share: float) -> str:
    if name == REFERENCE:
        return ""
    ours, theirs = ([row[column] for row in rows[one]] for one in (name, REFERENCE))
    mean, low, high = difference(ours, theirs, share=share)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with a language model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--contexts", type=int, default=100, help="of each kind, answered rightly")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first context")
    parser.add_argument("--ablations", type=int, default=64)
    parser.add_argument("--new", type=int, default=24, help="tokens of an answer at most")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--pool", default="sum", choices=answers.POOLS)
    parser.add_argument("--minutes", type=float, default=60.0, help="no question is asked after these")
    parser.add_argument("--part", default="0/1", help="which part of the work this process does, such as 2/8")
    parser.add_argument("--lines", type=Path, default=Path("answers.lines"), help="the file of results")
    parser.add_argument("--table", type=Path, nargs="+", help="print the tables of these files")
    given = parser.parse_args()
    if not given.table and given.model is None:
        parser.error("--model or --table is needed")
    given.part = tuple(map(int, given.part.split("/")))
    given.kind = given.kind or list(KINDS)
    given.deadline = time.monotonic() + 60 * given.minutes
    return given


def main() -> None:
    """Ask what the time allows, or print the tables."""
    given = parsed()
    if given.table:
        print(tables(given.table, given.contexts))
        return
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(given.device).eval()
    with given.lines.open("a") as file:
        for line in asked(given, model, tokenizer):
            print(json.dumps(line), file=file, flush=True)


if __name__ == "__main__":
    main()
