"""What each method does on each model of the table, and the page of the docs that says so."""

import logging
import re
import sys
import warnings
from functools import cache
from pathlib import Path

import torch
from any_models import Entry
from any_new_models import TABLE

import vitrail
from vitrail.errors import VitrailError

METHODS = ("auto", "gae", "tokentm", "attcat", "integrated_gradients", "gradtoken", "attn_lrp")
FEW = {"integrated_gradients": {"steps": 3}}
"""Options with which a method runs a model less often: what is asked of it here holds for any number of steps."""
NOISE = 0.02
"""What is added to all weights, in standard deviations."""
PAGE = Path(__file__).parent.parent / "docs" / "models.md"
REASONS = {
    r"integrated_gradients did not converge": "integrated gradients do not add up",
    r"is defined on one stream": "defined on one stream of tokens",
    r"queries and keys cannot be told": "attention in a form that cannot be followed",
    r"blocks of this model attend": "blocks without attention mix tokens",
    r"which token comes from which part": "tokens are mixed before the blocks",
    r"attention calls outside the blocks": "attention outside the blocks",
    r"which tokens come from which part of it cannot be told": "tokens are not found in the picture",
    r"mixed between two attention calls": "tokens are mixed between attention calls",
    r"asks for the tokens of": "the tokens are read in another form",
    r"no attention was seen": "no softmax attention",
    r"softmax of its attention in parts": "no rule for a softmax in parts",
    r"changed after its softmax": "maps are changed after the softmax",
    r"beside attention": "the blocks mix tokens beside attention",
    r"tokens: a model that changes their number": "the number of tokens changes",
    r"cannot be read token by token": "rows of attention are not tokens",
    r"are in no block|side by side|more than one:|attend once": "several attention calls in one block",
    r"do not say how relevance passes through ([\w.]+)": "no rule for {}",
    r"where no rule can see it": "an autograd function of its own",
    r"takes no root|no rule covers": "no rule for a norm",
    r"made where no rule can see it": "an autograd function of its own",
    r"changed in place and then read again": "a tensor is overwritten in place",
    r"writes into what one sub-layer gave": "a sub-layer's result is overwritten in place",
    r"'output_weight'.*stands between": "a norm or a gate before the output projection",
    r"'output_weight'|'ffn_added'|'ffn_entering'": "what is added to the stream is not known",
    r"adds to its stream is not known": "what is added to the stream is not known",
    r"do not read one query": "no one query",
    r"the state|needs the model's blocks|no module is a block": "the stream passes by the modules that attend",
    r"no place where the gradient could end": "ids are changed before they are looked up",
    r"torch.no_grad inside": "attention runs under torch.no_grad",
    r"weights of the model were changed": "the model changes its own weights",
    r"its own backward pass says": "the model's own backward pass refuses",
    r"writes into a tensor": "a tensor is overwritten in place",
    r"gradient of the target is (NaN|not finite)": "the gradient is not finite",
    r"8-bit kernels have no gradient|quantized": "8-bit kernels have no gradient",
    r"does not run in": "does not run in the precision asked for",
}
"""What stands in a cell, by words of the error."""


def prepared(entry: Entry):
    """The model in float64 with noise on its weights, unless its precision is the point, and inputs for it."""
    torch.manual_seed(0)
    model = entry.build().eval()
    if entry.group != "adapted and quantised":
        model = model.double()
        with torch.no_grad():  # biases, scales and some heads begin at zero, which hides what they do
            for x in model.parameters():
                x.add_(torch.randn_like(x), alpha=NOISE)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)

    def cast(x):
        return x.to(dtype) if x.is_floating_point() else x

    inputs = entry.inputs()
    return model, {key: cast(x) for key, x in inputs.items()} if isinstance(inputs, dict) else cast(inputs)


def explained(entry: Entry, model, inputs, method: str, *, index: int = 1):
    return vitrail.explain(model, inputs, method, entry.target(index)[0], **FEW.get(method, {})).scores


def outcomes(entry: Entry) -> dict[str, str]:
    """For each method `ok`, or why it is refused."""
    model, inputs = prepared(entry)
    logging.disable(logging.WARNING)
    try:
        return {method: _outcome(entry, model, inputs, method) for method in METHODS}
    finally:
        logging.disable(logging.NOTSET)


def _outcome(entry: Entry, model, inputs, method: str) -> str:
    try:
        scores = explained(entry, model, inputs, method)
    except VitrailError as error:
        return reason(str(error))
    assert bool(torch.isfinite(scores).all())
    return "ok"


def reason(words: str) -> str:
    for pattern, short in REASONS.items():
        if found := re.search(pattern, words, re.DOTALL):
            return short.format(*(name.removeprefix("torch.") for name in found.groups()))
    raise AssertionError(f"no short reason for: {words}")


@cache
def documented() -> dict[str, dict[str, str]]:
    """The rows of the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name.strip("`"): dict(zip(METHODS, found, strict=True)) for name, _, *found in cells}


HEAD = """# Models

Vitrail finds the blocks of a model in one pass, so a model needs no entry in a table. This page lists tiny models of
today's libraries, built from their own configurations with noise on their weights and explained without an `Anatomy`.
It is written by `python tests/any_outcomes.py` (with names: these rows alone). `tests/test_any_transformer.py` holds
each cell. Where a model returns its attention maps, `gae` and `attcat` are compared with plain matrices on them, and
`integrated_gradients` with a plain loop over the model, in float64; all methods are compared between batches and
single samples, with and without padding, and between classes.

A cell says `ok`, or why the method is refused. `auto` is the default method.
"""


def page(found: dict[str, dict[str, str]]) -> str:
    parts = [HEAD]
    for group in dict.fromkeys(entry.group for entry in TABLE.values()):
        parts.append(f"\n## {group[0].upper()}{group[1:]}\n\n| model | class | " + " | ".join(METHODS) + " |\n")
        parts.append("|---" * (len(METHODS) + 2) + "|\n")
        for name in (name for name in found if TABLE[name].group == group):
            cells = [found[name][method] for method in METHODS]
            parts.append(f"| `{name}` | {TABLE[name].kind} | " + " | ".join(cells) + " |\n")
    explained_by_default = sum(cells["auto"] == "ok" for cells in found.values())
    total = f"\n{len(found)} models; {explained_by_default} are explained by the default method.\n"
    return "".join([*parts[:1], total, *parts[1:]])


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    wanted = sys.argv[1:]
    made = {name: cells for name, cells in documented().items() if wanted and name in TABLE and name not in wanted}
    for name in wanted or TABLE:
        made[name] = outcomes(TABLE[name])
        print(name, made[name], flush=True, file=sys.stderr)
        PAGE.write_text(page({name: made[name] for name in TABLE if name in made}))
