"""Protocol `answers`: does an explanation of a generated answer name the passages of the context that it came from?

Where the passage is known, because the context was written around it (a needle among other sentences, a chain of
variables), two metrics apply: the share of its tokens among the best k % of the context, and the reciprocal rank of its
sentence. Otherwise sentences are removed. The linear datamodeling score (Park et al., ICML 2023, arXiv:2303.14186; for
contexts: Cohen-Wang et al., NeurIPS 2024, arXiv:2409.00729) says how well summed scores predict the answer's
log-probability without random sentences. Two more say how far it falls without the best k sentences, and with them
alone. The ablations are drawn with another seed than those that `context_cite` is fitted to.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.capture.recording.continuations import summed
from vitrail.errors import InputError
from vitrail.evaluate.data.examples import ContextExample
from vitrail.evaluate.metrics.texts import lds, recall_at
from vitrail.models.prompts import Message, check_answer, generate_ids, read_prompt
from vitrail.models.texts import Span


@dataclass(frozen=True, eq=False)
class Question:
    """A context and an answer as a model reads them.

    Args:
        ids: the whole text.
        start: the column where what is explained of the answer begins.
        stop: the column after it.
        sources: the columns of the sentences of the context.
        value: the columns of the words that the answer repeats.
        right: whether the model's answer holds the value; None where it is not known.
    """

    ids: Int[Tensor, " t"]
    start: int
    stop: int
    sources: tuple[Span, ...]
    gold: tuple[int, ...] = ()
    value: tuple[int, ...] = ()
    right: bool | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs that the model is called with."""
        return {"input_ids": self.ids[None], "attention_mask": torch.ones_like(self.ids)[None]}


def ask(model: Any, tokenizer: Any, context: ContextExample, *, max_new_tokens: int = 24) -> Question:  # noqa: ANN401
    """The model's own greedy answer, or the digits of it that are the value where that is known."""
    text = " ".join(context.sentences)
    prompt: str | list[Message] = f"{text}\n\n{context.question}\n"
    if getattr(tokenizer, "chat_template", None) is not None:
        prompt = [{"role": "user", "content": f"{text}\n\n{context.question}"}]
    read = read_prompt(tokenizer, prompt, None)
    places = _places(context, text, read.text)
    sources = tuple(_columns(read.letters, a, b) for a, b in places)
    answer = generate_ids(model, read.ids, max_new_tokens)
    check_answer(tokenizer, prompt, answer)
    span = _within(tokenizer, answer, context.value)
    first, last = span or (0, len(answer))
    start = len(read.ids)
    return Question(
        torch.tensor([*read.ids, *answer[:last]], device=next(model.parameters()).device),
        start + first,
        start + last,
        sources,
        context.gold,
        _value(context, read.text, places, read.letters),
        None if not context.value else span is not None,
    )


def _places(context: ContextExample, text: str, prompt: str) -> list[Span]:
    """The letters of each sentence in the prompt."""
    begin = prompt.find(text)
    if begin < 0:
        raise InputError("the chat template changes the text of the context, so its sentences cannot be found again.")
    ends = [begin + end for end in accumulate(len(sentence) + 1 for sentence in context.sentences)]
    return [(end - 1 - len(one), end - 1) for end, one in zip(ends, context.sentences, strict=True)]


def _value(
    context: ContextExample, prompt: str, places: Sequence[Span], offsets: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """The tokens of the value in the first gold sentence that holds it."""
    for place in context.gold:
        if context.value and context.value in context.sentences[place]:
            at = prompt.index(context.value, places[place][0])
            return tuple(range(*_columns(offsets, at, at + len(context.value))))
    return ()


def _columns(offsets: Sequence[tuple[int, int]], begin: int, end: int) -> Span:
    """The tokens that hold these letters."""
    found = [i for i, (a, b) in enumerate(offsets) if b > a and b > begin and a < end]
    if not found:
        raise InputError("the tokenizer leaves nothing of a sentence of the context.")
    return found[0], found[-1] + 1


def _within(tokenizer: Any, ids: list[int], value: str) -> Span | None:  # noqa: ANN401
    """The tokens of an answer that spell the value; None if it is not there or there is none."""
    if not value:
        return None
    ends = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    at = tokenizer.decode(ids).replace(",", " ").find(value)
    if at < 0:
        return None
    first = next(i for i, end in enumerate(ends) if end > at)
    return first, next(i for i, end in enumerate(ends) if end >= at + len(value)) + 1


Keep = Bool[Tensor, "m s"]


def scores_without(model: nn.Module, question: Question, keep: Keep, *, batch: int = 16) -> Float[Tensor, " m"]:
    """The log-probability of the answer with only some of the sentences; what is no sentence stays."""
    return torch.cat([_some(model, question, some) for some in keep.split(batch)]).double().cpu()


@torch.no_grad()
def _some(model: nn.Module, question: Question, keep: Keep) -> Float[Tensor, " m"]:
    """Ablations side by side, filled up on the left, so that the answer stands in the last columns of all of them."""
    ids, device = question.ids, question.ids.device
    held = torch.ones(len(keep), len(ids), dtype=torch.bool, device=device)
    for source, (a, b) in enumerate(question.sources):
        held[:, a:b] = keep[:, source, None].to(device)
    order = held.int().sort(dim=1, stable=True).indices[:, -int(held.sum(dim=1).max()) :]
    mask = held.gather(1, order)
    said = question.stop - question.start
    extra = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0), "logits_to_keep": said + 1}
    logits = model(input_ids=ids[order], attention_mask=mask.long(), use_cache=False, **extra).logits[:, :-1].float()
    samples = torch.arange(len(keep), device=device).repeat_interleave(said)
    return summed(logits.flatten(0, 1), ids[question.start :].repeat(len(keep)), samples, len(keep))


Scores = Callable[[Any, Question], Float[Tensor, " t"]]


def at_random(model: object, question: Question) -> Float[Tensor, " t"]:
    """A row that every method has to beat."""
    seed = int((question.ids.cpu() * torch.arange(1, len(question.ids) + 1)).sum())
    return torch.rand(len(question.ids), generator=torch.Generator().manual_seed(seed))


def by_position(model: object, question: Question) -> Float[Tensor, " t"]:
    """Score tokens by their position, later tokens first: the answer stands next to them."""
    return torch.arange(len(question.ids)).float()


PRIORS: dict[str, Scores] = {"random": at_random, "position": by_position}
"""Rows of every table of answers that read nothing of the model."""
POOLS: dict[str, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
"""How the scores of a sentence's tokens become one."""


@dataclass(frozen=True, eq=False)
class Ablations:
    """The results of random ablations of one answer, and its log-probability with the whole context."""

    keep: Keep
    values: Float[Tensor, " m"]
    whole: float


def pooled(scores: Float[Tensor, " t"], sources: Sequence[Span], pool: str) -> Float[Tensor, " s"]:
    """One score for each sentence."""
    return torch.stack([POOLS[pool](scores[a:b]) for a, b in sources])


def recall(
    scores: Float[Tensor, " t"], sources: Sequence[Span], gold: Sequence[int], percent: int | float = 10
) -> float:
    """The share of the gold tokens among the best tokens of the context."""
    inside = torch.full_like(scores, -torch.inf)
    for a, b in sources:
        inside[a:b] = scores[a:b]
    marked = torch.zeros(1, len(scores), dtype=torch.bool)
    marked[0, list(gold)] = True
    return float(recall_at(inside[None], marked, percent)[0])


def score_lds(each: Float[Tensor, " s"], known: Ablations) -> float:
    """The linear datamodeling score of sentence scores; equal scores predict nothing and have 0."""
    if bool((known.values == known.values[0]).all()):
        raise InputError("no ablation changes the answer's log-probability, so none can be predicted.")
    score = float(lds(each[None], known.keep[None], known.values[None])[0])
    return 0.0 if math.isnan(score) else score
