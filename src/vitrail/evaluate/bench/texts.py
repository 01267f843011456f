"""Batches of texts and questions, as token ids padded to the longest, and of contexts with the model's own answers.

An example that cannot be read is kept with the reason; the others go on. Contexts are explained one by one and not
padded, so a number does not depend on which other examples are in the batch.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.api import compare
from vitrail.attribution import Attribution, Comparison
from vitrail.errors import InputError, ModelError, VitrailError
from vitrail.evaluate import answers
from vitrail.evaluate.answers import Ablations, Keep, Question
from vitrail.evaluate.bench.opened import Broken, Opened, RunSettings
from vitrail.evaluate.bench.pictures import Pictures, read_pictures
from vitrail.evaluate.bench.plan import Trial
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.data.examples import ContextExample, QuestionExample, TextExample
from vitrail.methods import METHODS
from vitrail.methods.context_cite import kept_sources
from vitrail.models.inputs import position_limit
from vitrail.models.texts import check_text
from vitrail.targets import continuation


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, pairs of texts, or questions with their contexts, padded to the longest."""

    opened: Opened
    settings: RunSettings
    examples: Sequence[TextExample | QuestionExample]
    inputs: Mapping[str, Tensor]
    spans: Sequence[tuple[int, int] | None] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The examples' keys."""
        return tuple(example.key for example in self.examples)

    @property
    def labels(self) -> list[int | None]:
        """The data set's class of each; none for questions."""
        return [getattr(example, "label", None) for example in self.examples]

    def score(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits of token ids."""
        return self._run({"input_ids": ids, "attention_mask": mask})

    @torch.no_grad()
    def _run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        placed = {name: x.to(self.opened.device) for name, x in inputs.items()}
        with self.settings.precision():
            return self.opened.loaded.model(**placed).logits.float()

    @cached_property
    def logits(self) -> Tensor:
        """The logits of the texts as they are."""
        skip = {"special_tokens_mask", "offset_mapping"}
        return self._run({name: x for name, x in self.inputs.items() if name not in skip})

    def take(self, rows: Sequence[int]) -> "Texts":
        """Some of the texts."""
        return replace(
            self,
            examples=[self.examples[i] for i in rows],
            inputs={name: x[list(rows)] for name, x in self.inputs.items()},
            spans=[self.spans[i] for i in rows] if self.spans else (),
        )


def read_texts(
    opened: Opened, settings: RunSettings, examples: Sequence[Any], protocol: Protocol
) -> tuple[Texts, Broken]:
    """The texts as token ids, cut where the model or the papers end."""
    broken = {}
    for example in examples:
        try:
            for text in example.texts:
                check_text(text)
        except InputError as error:
            broken[example.key] = f"{example.key}: {error}"
    good = [example for example in examples if example.key not in broken]
    if not good:
        return Texts(opened, settings, good, {}), broken
    seconds = [example.second for example in good if example.second is not None]
    pairs = seconds if len(seconds) == len(good) else None
    encoding = _encode(opened, [e.text for e in good], pairs, longest=512, truncation="longest_first")
    content = ((encoding["special_tokens_mask"] == 0) & (encoding["attention_mask"] != 0)).any(dim=1).tolist()
    empty = [example.key for example, some in zip(good, content, strict=True) if not some]
    broken |= {key: f"{key}: the tokenizer leaves nothing of the text." for key in empty}
    rows = [row for row, some in enumerate(content) if some]
    return Texts(opened, settings, good, dict(encoding)).take(rows), broken


def read_questions(
    opened: Opened, settings: RunSettings, examples: Sequence[Any], protocol: Protocol
) -> tuple[Texts, Broken]:
    """Questions with contexts; those without an answer, or whose answer was cut off, are left out."""
    broken = {e.key: f"{e.key}: the question has no answer." for e in examples if not e.answers}
    good = [example for example in examples if example.key not in broken]
    if not good:
        return Texts(opened, settings, good, {}), broken
    questions, contexts = [e.question for e in good], [e.context for e in good]
    encoding = _encode(opened, questions, contexts, longest=384, truncation="only_second")
    spans = [_answer_tokens(encoding, i, example) for i, example in enumerate(good)]
    broken |= {
        e.key: f"{e.key}: the answer lies after the last token the model reads."
        for e, span in zip(good, spans, strict=True)
        if span is None
    }
    rows = [i for i, span in enumerate(spans) if span is not None]
    return Texts(opened, settings, good, dict(encoding), spans).take(rows), broken


def _encode(opened: Opened, first: list[str], second: list[str] | None, *, longest: int, truncation: str) -> Any:  # noqa: ANN401
    """Token ids, cut after as many tokens as in the papers, or earlier if the model has fewer positions."""
    tokenizer, limit = opened.loaded.tokenizer, position_limit(opened.loaded.model)
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise ModelError(f"the bench needs a fast tokenizer with a padding token, but {opened.loaded.name} has none.")
    found = tokenizer(
        first,
        second,
        return_tensors="pt",
        padding=True,
        truncation=truncation,
        max_length=min(longest, limit or longest),
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
    )
    return found.to(opened.device)


def _answer_tokens(encoding: Any, row: int, example: QuestionExample) -> tuple[int, int] | None:  # noqa: ANN401
    """First and last token of the first answer; None where it was cut off."""
    answer = example.answers[0]
    first = encoding.char_to_token(row, answer.start, sequence_index=1)
    last = encoding.char_to_token(row, answer.end - 1, sequence_index=1)
    return None if first is None or last is None else (first, last)


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

    def take(self, rows: Sequence[int]) -> "Contexts":
        """Some of the contexts; what is known of their ablations is shared."""
        examples, questions = [self.examples[i] for i in rows], [self.questions[i] for i in rows]
        return replace(self, examples=examples, questions=questions)

    def ablations(self, number: int, count: int) -> Ablations:
        """One answer under so many random ablations of its sentences, run once for all methods."""
        place = (self.keys[number], count)
        if place not in self.ablated:
            seed = held_out_seed(self.settings.seed, self.keys[number])
            keep = kept_sources(len(self.questions[number].sources), count, seed)  # as ContextCite draws them
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
                raise InputError("the model's answer does not hold the value.")
        except InputError as error:
            broken[example.key] = str(error)  # without the key, so that the table counts how often it was so
            continue
        good.append(example)
        asked.append(question)
    return Contexts(opened, settings, good, asked, protocol.scalar), broken


Row = Float[Tensor, " t"] | Exception
"""The scores of one text, or why a method has none."""


def outcomes(found: Comparison) -> list[Attribution | VitrailError]:
    """Return the result of each method that was asked for, in their order: an attribution, or why it has none."""
    made = iter(found)
    return [found.failed[i] if i in found.failed else next(made) for i in range(len(found) + len(found.failed))]


def explained_contexts(batch: Contexts, trials: Sequence[Trial], preset: str, model: nn.Module) -> list[list[Row]]:
    """For each method, the scores of the columns of each text, or why it failed on it."""
    found = [_of_question(question, batch.scalar, trials, preset, model) for question in batch.questions]
    return [list(rows) for rows in zip(*found, strict=True)]


def _of_question(question: Question, scalar: str, trials: Sequence[Trial], preset: str, model: nn.Module) -> list[Row]:
    """Return the result of each method for one answer: from one recording, as far as their kinds allow."""
    target = continuation(question.start, question.stop, scalar=scalar)
    # Methods that score sources as a whole get the sentences; others score tokens, which are summed.
    whole, named = {"sources": list(question.sources)}, [t for t in trials if t.name not in answers.PRIORS]
    specs = [(t.name, {**(whole if "sources" in METHODS[t.name].options else {}), **t.options}) for t in named]
    found = outcomes(compare(model, question.inputs, specs, target, preset, on_error="keep")) if specs else []
    rows = (one if isinstance(one, Exception) else one.scores[0].detach().float().cpu() for one in found)
    return [answers.PRIORS[t.name](model, question) if t.name in answers.PRIORS else next(rows) for t in trials]


Batch = Pictures | Texts | Contexts
READERS: dict[str, Callable[[Opened, RunSettings, Sequence[Any], Protocol], tuple[Batch, Broken]]] = {
    "image": read_pictures,
    "text": read_texts,
    "question": read_questions,
    "answer": read_contexts,
}
