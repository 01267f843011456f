"""Batches of texts and questions: token ids, padded to the longest.

An example that cannot be read is kept with the reason; the others go on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ModelError
from vitrail.evaluate.bench.contexts import Contexts, read_contexts
from vitrail.evaluate.bench.opened import Broken, Opened, RunSettings
from vitrail.evaluate.bench.pictures import Pictures, read_pictures
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.data.examples import QuestionExample, TextExample
from vitrail.models.inputs import position_limit
from vitrail.models.texts import is_blank

LONGEST = {"text": 512, "question": 384}
"""Where texts are cut, as in the papers; earlier if the model has fewer positions."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, pairs of texts, or questions with their contexts, padded to the longest."""

    opened: Opened
    settings: RunSettings
    examples: Sequence[TextExample | QuestionExample]
    encoding: Mapping[str, Tensor]
    spans: Sequence[tuple[int, int] | None] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The examples' keys."""
        return tuple(example.key for example in self.examples)

    @property
    def labels(self) -> list[int | None]:
        """The data set's class of each; none for questions."""
        return [getattr(example, "label", None) for example in self.examples]

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """What is explained."""
        return self.encoding

    @cached_property
    def lengths(self) -> list[int]:
        """How many tokens are real."""
        return self.encoding["attention_mask"].sum(dim=1).tolist()

    @cached_property
    def ids(self) -> list[list[int]]:
        """The real tokens of each text."""
        rows = zip(self.encoding["input_ids"].tolist(), self.encoding["attention_mask"].tolist(), strict=True)
        return [[token for token, real in zip(*row, strict=True) if real] for row in rows]

    @torch.no_grad()
    def score(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits of token ids."""
        with self.settings.precision():
            return self._run({"input_ids": ids, "attention_mask": mask})

    def _run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        placed = {name: x.to(self.opened.device) for name, x in inputs.items()}
        return self.opened.loaded.model(**placed).logits.float()

    @cached_property
    def logits(self) -> Tensor:
        """What the model says of the texts as they are."""
        skip = {"special_tokens_mask", "offset_mapping"}
        with torch.no_grad(), self.settings.precision():
            return self._run({name: x for name, x in self.encoding.items() if name not in skip})

    @property
    def special(self) -> set[int]:
        """Ids that are never removed; a word the tokenizer does not know is no such id."""
        tokenizer = self.opened.loaded.tokenizer
        return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}

    @property
    def pad(self) -> int:
        """The id of [PAD]."""
        return int(self.opened.loaded.tokenizer.pad_token_id)

    def take(self, rows: Sequence[int]) -> "Texts":
        """Some of the texts."""
        return Texts(
            self.opened,
            self.settings,
            [self.examples[i] for i in rows],
            {name: x[list(rows)] for name, x in self.encoding.items()},
            [self.spans[i] for i in rows] if self.spans else (),
        )


def read_texts(
    opened: Opened, settings: RunSettings, examples: Sequence[Any], protocol: Protocol
) -> tuple[Texts, Broken]:
    """The texts as token ids, cut where the model or the papers end."""
    broken = {e.key: f"{e.key}: the text is empty." for e in examples if any(map(is_blank, e.texts))}
    good = [example for example in examples if example.key not in broken]
    encoding = _encode_texts(opened, good)
    if good and (dropped := _without_content(encoding)):
        broken |= {good[row].key: f"{good[row].key}: the tokenizer leaves nothing of the text." for row in dropped}
        good = [example for example in good if example.key not in broken]
        encoding = _encode_texts(opened, good)
    return Texts(opened, settings, good, encoding), broken


def _encode_texts(opened: Opened, examples: Sequence[TextExample]) -> Any:  # noqa: ANN401
    if not examples:
        return {}
    firsts, seconds = [e.text for e in examples], [e.second for e in examples]
    pairs = None if any(x is None for x in seconds) else [x for x in seconds if x is not None]
    return _encode(opened, firsts, pairs, kind="text", truncation="longest_first")


def _without_content(encoding: Mapping[str, Tensor]) -> list[int]:
    """The texts that consist of special tokens only."""
    content = (encoding["special_tokens_mask"] == 0) & (encoding["attention_mask"] != 0)
    return (~content.any(dim=1)).nonzero()[:, 0].tolist()


def read_questions(
    opened: Opened, settings: RunSettings, examples: Sequence[Any], protocol: Protocol
) -> tuple[Texts, Broken]:
    """Questions with contexts; those without an answer, or whose answer was cut off, are left out."""
    broken = {e.key: f"{e.key}: the question has no answer." for e in examples if not e.answers}
    good = [example for example in examples if example.key not in broken]
    if not good:
        return Texts(opened, settings, good, {}), broken
    questions, contexts = [e.question for e in good], [e.context for e in good]
    encoding = _encode(opened, questions, contexts, kind="question", truncation="only_second")
    spans = [_answer_tokens(encoding, i, example) for i, example in enumerate(good)]
    broken |= {
        e.key: f"{e.key}: the answer lies after the last token the model reads."
        for e, span in zip(good, spans, strict=True)
        if span is None
    }
    rows = [i for i, span in enumerate(spans) if span is not None]
    return Texts(opened, settings, good, dict(encoding), spans).take(rows), broken


def _encode(opened: Opened, first: list[str], second: list[str] | None, *, kind: str, truncation: str) -> Any:  # noqa: ANN401
    tokenizer, model = opened.loaded.tokenizer, opened.loaded.model
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise ModelError(f"the bench needs a fast tokenizer with a padding token, but {opened.loaded.name} has none.")
    limit = min(LONGEST[kind], position_limit(model) or LONGEST[kind])
    found = tokenizer(
        first,
        second,
        return_tensors="pt",
        padding=True,
        truncation=truncation,
        max_length=limit,
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


Batch = Pictures | Texts | Contexts
READERS: dict[str, Callable[[Opened, RunSettings, Sequence[Any], Protocol], tuple[Batch, Broken]]] = {
    "image": read_pictures,
    "text": read_texts,
    "question": read_questions,
    "answer": read_contexts,
}
