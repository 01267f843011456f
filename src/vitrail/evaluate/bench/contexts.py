"""Batches of contexts: the answers that a language model gives to questions about them, and their explanations.

Texts are explained one by one and not padded, so a number does not depend on which other examples are in the batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.api import compare
from vitrail.errors import InputError, ModelError
from vitrail.evaluate import answers
from vitrail.evaluate.answers import Ablations, Keep, Question
from vitrail.evaluate.bench.opened import Broken, Opened, RunSettings
from vitrail.evaluate.bench.plan import PRIORS, Trial
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.data.examples import ContextExample
from vitrail.methods import METHODS
from vitrail.targets import Target, continuation

WRONG = "the model's answer does not hold the value"


@dataclass(frozen=True, eq=False)
class Contexts:
    """Questions about contexts with the model's own answers.

    Args:
        scalar: what is explained of the answers.
        ablated: what became of the answers under held-out ablations, by key and number of ablations.
    """

    opened: Opened
    settings: RunSettings
    examples: Sequence[ContextExample]
    questions: Sequence[Question]
    scalar: str = "log_probability"
    ablated: dict[tuple[str, int], Ablations] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The examples' keys."""
        return tuple(example.key for example in self.examples)

    @property
    def labels(self) -> list[int | None]:
        """None: an answer has no class."""
        return [None] * len(self.examples)

    def take(self, rows: Sequence[int]) -> "Contexts":
        """Some of the contexts; what is known of their ablations is shared."""
        examples, questions = [self.examples[i] for i in rows], [self.questions[i] for i in rows]
        return replace(self, examples=examples, questions=questions)

    def ablations(self, number: int, count: int) -> Ablations:
        """One answer under so many random ablations of its sentences, run once for all methods."""
        place = (self.keys[number], count)
        if place not in self.ablated:
            seed = held_out_seed(self.settings.seed, self.keys[number])
            keep = answers.random_ablations(len(self.questions[number].sources), count, seed)
            found = self.scores(number, torch.cat([torch.ones_like(keep[:1]), keep]))
            self.ablated[place] = Ablations(keep, found[1:], float(found[0]))
        return self.ablated[place]

    def scores(self, number: int, keep: Keep) -> Float[Tensor, " m"]:
        """The log-probability of one answer with only some of the sentences."""
        with self.settings.precision():
            return answers.scores_without(
                self.opened.loaded.model, self.questions[number], keep, batch=self.settings.forward_batch
            )


def held_out_seed(seed: int, key: str) -> int:
    """Of the ablations of one example: none that a method is fitted to has the same, whatever its own seed is."""
    return int.from_bytes(hashlib.sha256(f"held out {seed} {key}".encode()).digest()[:7])


def read_contexts(
    opened: Opened, settings: RunSettings, examples: Sequence[Any], protocol: Protocol
) -> tuple[Contexts, Broken]:
    """The model's answers; those that are empty, too long or known to be wrong are left out."""
    tokenizer, good, asked, broken = opened.loaded.tokenizer, [], [], {}
    if not tokenizer.is_fast:
        raise ModelError(f"the bench needs a fast tokenizer, but {opened.loaded.name} has none.")
    for example in examples:
        try:
            question = answers.ask(opened.loaded.model, tokenizer, example, max_new_tokens=protocol.new_tokens)
            if question.right is False:
                raise InputError(f"{WRONG}.")
        except InputError as error:
            broken[example.key] = str(error)  # without the key, so that the table counts how often it was so
            continue
        good.append(example)
        asked.append(question)
    return Contexts(opened, settings, good, asked, protocol.scalar), broken


Row = Float[Tensor, " t"] | Exception
"""The scores of one text, or why a method has none."""


def explained_contexts(batch: Contexts, trials: Sequence[Trial], preset: str, model: nn.Module) -> list[list[Row]]:
    """For each method, the scores of the columns of each text, or why it failed on it."""
    targets = [continuation(one.start, one.stop, scalar=batch.scalar) for one in batch.questions]
    pairs = zip(batch.questions, targets, strict=True)
    found = [_of_question(question, target, trials, preset, model) for question, target in pairs]
    return [list(rows) for rows in zip(*found, strict=True)]


def _of_question(
    question: Question, target: Target, trials: Sequence[Trial], preset: str, model: nn.Module
) -> list[Row]:
    """What each method says of one answer: from one recording, as far as their kinds allow."""
    named = [trial for trial in trials if trial.name not in PRIORS]
    specs = [(trial.name, {**_sources(trial, question), **trial.options}) for trial in named]
    found: list[Row] = []
    if specs:
        together = compare(model, question.inputs, specs, target, preset, on_error="keep")
        made = iter(together)
        found = [
            together.failed[place] if place in together.failed else next(made).scores[0].detach().float().cpu()
            for place in range(len(specs))
        ]
    rows = iter(found)
    return [answers.PRIORS[t.name](model, question) if t.name in PRIORS else next(rows) for t in trials]


def _sources(trial: Trial, question: Question) -> dict[str, Any]:
    """The sentences, for methods that score sources as a whole; others score tokens, which are summed."""
    return {"sources": list(question.sources)} if "sources" in METHODS[trial.name].options else {}
