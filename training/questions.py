"""Questions about texts in the format of SQuAD, as windows of tokens that a span head can read."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from training.encoded import Encoded

NOWHERE = (0, 0)  # the span of a window without the answer: the first special token


@dataclass(frozen=True)
class Answer:
    """An answer as it stands in the context, and its first character's number there."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a context, with an answer by each person who was asked."""

    text: str
    context: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Windows:
    """Pairs of a question and a piece of its context.

    Args:
        question: the number of the question that a window belongs to.
        context: the window's tokens that are of the context.
        offsets: the first and one past the last character of each token in its text.
    """

    encoded: Encoded
    question: list[int]
    context: list[range]
    offsets: list[list[tuple[int, int]]]


def read_squad(path: Path, *, limit: int | None = None) -> list[Question]:
    """The questions of a file in the format of SQuAD 1.1 or 2.0, those without an answer left out."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    paragraphs = (paragraph for article in articles for paragraph in article["paragraphs"])
    return list(islice((q for paragraph in paragraphs for q in _questions(paragraph)), limit))


def _questions(paragraph: dict) -> Iterator[Question]:
    context = paragraph["context"]
    for row in paragraph["qas"]:
        answers = tuple(Answer(a["text"], a["answer_start"]) for a in row["answers"])
        for answer in answers:
            there = context[answer.start : answer.start + len(answer.text)]
            if there != answer.text:
                raise ValueError(f"question {row['id']}: the answer is {answer.text!r}, the context has {there!r}.")
        if answers:
            yield Question(row["question"].strip(), context, answers)


def common_answer(question: Question) -> Answer:
    """The answer that most people gave, the first of several."""
    return Counter(question.answers).most_common(1)[0][0]


def make_windows(
    tokenizer: PreTrainedTokenizerBase, questions: list[Question], *, longest: int, stride: int
) -> Windows:
    """Every question before every piece of its context, and where its common answer is.

    Args:
        longest: tokens of a window; the context is cut, never the question.
        stride: tokens that a piece shares with the one before it.
    """
    found = tokenizer(
        [question.text for question in questions],
        [question.context for question in questions],
        truncation="only_second",
        max_length=longest,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    numbers, offsets = found["overflow_to_sample_mapping"], found["offset_mapping"]
    context = [_context(found, window) for window in range(len(numbers))]
    answers = [common_answer(question) for question in questions]
    spans = [token_span(*window, answers[n]) for n, *window in zip(numbers, offsets, context, strict=True)]
    targets = dict(zip(("start_positions", "end_positions"), torch.tensor(spans).unbind(dim=1), strict=True))
    encoded = Encoded(found["input_ids"], found.get("token_type_ids"), targets, tokenizer.pad_token_id)
    return Windows(encoded, numbers, context, offsets)


def token_span(offsets: list[tuple[int, int]], context: range, answer: Answer) -> tuple[int, int]:
    """The first and last token of an answer in a window, or `NOWHERE` if the window does not hold all of it."""
    end = answer.start + len(answer.text)
    if not context or offsets[context[0]][0] > answer.start or offsets[context[-1]][1] < end:
        return NOWHERE
    inside = [t for t in context if offsets[t][0] < end and offsets[t][1] > answer.start]
    return (inside[0], inside[-1]) if inside else NOWHERE


def _context(found: BatchEncoding, window: int) -> range:
    texts = found.sequence_ids(window)
    first = texts.index(1) if 1 in texts else len(texts)
    return range(first, first + texts.count(1))
