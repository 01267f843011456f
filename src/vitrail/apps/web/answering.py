"""Answers of language models on the page: the answer's words, and what each of them rests on in the text."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

import vitrail
from vitrail.apps.web.explaining import Case, Explorer
from vitrail.apps.web.passes import running
from vitrail.apps.web.payload import packed
from vitrail.apps.web.workers import Job
from vitrail.errors import OptionError
from vitrail.models.inputs import position_limit
from vitrail.tools.generations import Generation

CITED = 3
"""Passages that are named for each word of the answer."""


def answer_of(explorer: Explorer, case: Case, prompt: str, length: int, job: Job) -> Generation:
    """The model's answer to the text with its sources, made once for each length; shorter where the model ends."""
    loaded = case.opened.loaded
    if loaded.task != "causal":
        raise OptionError(f"{loaded.name} writes no text, so it has no answer. Choose a language model.")
    key = ("answer", case.key, length)
    if (found := explorer.results.get(key)) is not None:
        return found
    twin = case.opened.twin
    limit = position_limit(twin.loaded.model)
    room = length if limit is None else min(length, max(1, limit - _tokens(case)))
    with running(twin, job, "writing the answer"):
        made = vitrail.generate(twin.loaded.model, loaded.tokenizer, prompt, unit="word", max_new_tokens=room)
    return explorer.results.put(key, made)


def _tokens(case: Case) -> int:
    """How long the text is."""
    return int(case.sample.inputs["input_ids"].shape[1])  # pyright: ignore[reportCallIssue, reportArgumentType]


def answer_json(found: Generation) -> dict[str, Any]:
    """The answer's words, the tokens of the text, and a row of scores over them for each word."""
    method, table = next(iter(found.tables.items()))
    first = found.units[0].start
    return {
        "text": found.text,
        "method": method,
        "prompt": list(found.tokens[:first]),
        "units": [{"text": one.text.strip()} for one in found.units],
        "scores": packed(table[:, :first].float()),
        "earlier": [_earlier(row, first) for row in table],
        "sink": [float(share) for share in found.sinks[method]],
        "cited": [
            [
                {"source": one.passage.source, "text": one.passage.text.strip(), "share": one.score}
                for one in row
                if one.score > 0
            ]
            for row in found.cite(CITED)
        ],
    }


def _earlier(row: Float[Tensor, " n"], first: int) -> float:
    """The share of a word's positive scores that lies on the answer itself, on words before it."""
    positive = row.clamp(min=0)
    total = float(positive.sum())
    return float(positive[first:].sum()) / total if total else 0.0
