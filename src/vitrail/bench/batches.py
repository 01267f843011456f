"""A batch of examples as a model takes it: pictures in 0..1 on its device, texts and questions as token ids.

Reading an example can fail; then its key is kept with the reason, and the others go on.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail import data
from vitrail.bench.opened import Opened
from vitrail.data.examples import ImageExample, QuestionExample, TextExample
from vitrail.errors import InputError, ModelError
from vitrail.inputs import position_limit
from vitrail.metrics import fills

LONGEST = {"text": 512, "question": 384}
"""Where texts are cut, as in the papers; earlier if the model has fewer positions."""


@dataclass(frozen=True)
class Settings:
    """How models are run."""

    device: str = "cpu"
    dtype: torch.dtype | None = None
    forward_batch: int = 64
    preset: str = "recommended"
    seed: int = 0

    def precision(self) -> AbstractContextManager[Any]:
        """The precision of the perturbed passes."""
        return nullcontext() if self.dtype is None else torch.autocast(torch.device(self.device).type, self.dtype)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of one size, in 0..1.

    Args:
        view: `squash` or `crop`; masks fit only the first.
    """

    opened: Opened
    settings: Settings
    examples: Sequence[ImageExample]
    images: Tensor
    view: str = "squash"
    emptied: dict[str, Tensor] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The examples' keys."""
        return tuple(example.key for example in self.examples)

    @property
    def labels(self) -> list[int | None]:
        """The data set's class of each."""
        return [example.label for example in self.examples]

    @property
    def inputs(self) -> Tensor:
        """What is explained."""
        return self.opened.normalise(self.images)

    @torch.no_grad()
    def score(self, images: Tensor) -> Tensor:
        """The logits of pictures in 0..1."""
        with self.settings.precision():
            return self.opened.logits(images)

    @cached_property
    def logits(self) -> Tensor:
        """What the model says of the clean pictures."""
        return self.score(self.images).float()

    def fill(self, name: str) -> str | fills.Fill:
        """What pixels are replaced by."""
        return fills.noise(seed=self.settings.seed) if name == "noise" else name

    def without_everything(self, fill: str) -> Tensor:
        """The logits when all pixels are removed, the same for every map."""
        if fill not in self.emptied:
            self.emptied[fill] = self.score(fills.filled(self.images, self.fill(fill))).float()
        return self.emptied[fill]

    def mask(self, number: int) -> Tensor:
        """The mask of an example at the size the model sees: 1 any object, 0 background, -1 ignored."""
        example = self.examples[number]
        if self.view != "squash":
            raise InputError(f"{example.key}: masks and boxes fit pictures that are squashed, not cropped.")
        mask = example.mask
        assert mask is not None
        height, width = self.images.shape[2:]
        mask = data.resize_mask(mask.clamp(max=1), (height, width))
        if not bool((mask == 1).any()):
            raise InputError(f"{example.key}: the mask has no foreground.")
        return mask

    def take(self, rows: Sequence[int]) -> "Pictures":
        """Some of the pictures."""
        return Pictures(
            self.opened, self.settings, [self.examples[i] for i in rows], self.images[list(rows)], self.view
        )


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, pairs of texts, or questions with their contexts, padded to the longest."""

    opened: Opened
    settings: Settings
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


Batch = Pictures | Texts
Broken = dict[str, str]


def read_pictures(opened: Opened, settings: Settings, examples: Sequence[Any], view: str) -> tuple[Pictures, Broken]:
    """The pictures that can be opened, and why the others cannot."""
    good, pixels, broken = [], [], {}
    for example in examples:
        try:
            picture = opened.loaded.image(example.image, squash=view == "squash").picture
        except InputError as error:
            broken[example.key] = str(error)
            continue
        good.append(example)
        pixels.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    size = (0, 3, *(opened.loaded.image_size or (1, 1)))
    stacked = torch.stack(pixels) if pixels else torch.zeros(size)
    weight = next(opened.loaded.model.parameters())
    images = stacked.to(opened.device).to(weight.dtype) / 255
    return Pictures(opened, settings, good, images, view), broken


def read_texts(opened: Opened, settings: Settings, examples: Sequence[Any], view: str) -> tuple[Texts, Broken]:
    """The texts as token ids, cut where the model or the papers end."""
    broken = {e.key: f"{e.key}: the text is empty." for e in examples if not all(t.strip() for t in e.texts)}
    good = [example for example in examples if example.key not in broken]
    firsts, seconds = [e.text for e in good], [e.second for e in good]
    pairs = seconds if good and seconds[0] is not None else None
    encoding = _encode(opened, firsts, pairs, kind="text", truncation="longest_first") if good else {}
    return Texts(opened, settings, good, encoding), broken


def read_questions(opened: Opened, settings: Settings, examples: Sequence[Any], view: str) -> tuple[Texts, Broken]:
    """Questions with contexts; those without an answer, or whose answer was cut off, are left out."""
    broken = {e.key: f"{e.key}: the question has no answer." for e in examples if not e.answers}
    good = [example for example in examples if example.key not in broken]
    if not good:
        return Texts(opened, settings, good, {}), broken
    questions, contexts = [e.question for e in good], [e.context for e in good]
    encoding = _encode(opened, questions, contexts, kind="question", truncation="only_second")
    spans = [_answer_tokens(encoding, i, example) for i, example in enumerate(good)]
    broken |= {
        e.key: f"{e.key}: the answer lies behind the last token the model reads."
        for e, span in zip(good, spans, strict=True)
        if span is None
    }
    rows = [i for i, span in enumerate(spans) if span is not None]
    return Texts(opened, settings, good, dict(encoding), spans).take(rows), broken


READERS: dict[str, Callable[[Opened, Settings, Sequence[Any], str], tuple[Batch, Broken]]] = {
    "image": read_pictures,
    "text": read_texts,
    "question": read_questions,
}


def _encode(opened: Opened, first: list[str], second: list[str] | None, *, kind: str, truncation: str) -> Any:  # noqa: ANN401
    tokenizer, model = opened.loaded.tokenizer, opened.loaded.model
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise ModelError(f"the bench needs a fast tokenizer with a padding token; that of {opened.loaded.name} is not.")
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
