"""Protocol `answers`: does an explanation of a generated answer name the passages of the context that it came from?

Where the passage is known, because the context was written around it (a needle among other sentences, a chain of
variables), two metrics apply: the share of its tokens among the best k % of the context, and the reciprocal rank of its
sentence. Otherwise sentences are removed. The linear datamodeling score (Park et al., ICML 2023, arXiv:2303.14186; for
contexts: Cohen-Wang et al., NeurIPS 2024, arXiv:2409.00729) says how well summed scores predict the answer's
log-probability without random sentences. Two more say how far it falls without the best k sentences, and with them
alone. The ablations are drawn with another seed than those that `context_cite` is fitted to.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.api import explain
from vitrail.capture.continuations import summed
from vitrail.errors import InputError
from vitrail.evaluate.data.examples import ContextExample
from vitrail.evaluate.metrics.texts import lds, recall_at
from vitrail.methods import METHODS
from vitrail.models.inputs import position_limit
from vitrail.models.texts import Span
from vitrail.targets import continuation

HELD_OUT_SEED = 7919
"""Of the ablations that are measured on; `context_cite` is fitted to others."""


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
        """What the model is called with."""
        return {"input_ids": self.ids[None], "attention_mask": torch.ones_like(self.ids)[None]}


def ask(model: Any, tokenizer: Any, context: ContextExample, *, max_new_tokens: int = 24) -> Question:  # noqa: ANN401
    """The model's own greedy answer, or the digits of it that are the value where that is known."""
    prompt, places = _prompt(tokenizer, context)
    read = tokenizer(prompt, add_special_tokens=not _has_chat(tokenizer), return_offsets_mapping=True)
    sources = tuple(_columns(read["offset_mapping"], a, b) for a, b in places)
    ids = torch.tensor(read["input_ids"], device=next(model.parameters()).device)
    limit = position_limit(model)
    if limit is not None and len(ids) + max_new_tokens > limit:
        raise InputError(f"the prompt has {len(ids)} tokens and {max_new_tokens} may follow; the model reads {limit}.")
    answer = _answered(model, tokenizer, ids, max_new_tokens)
    span = _within(tokenizer, answer, context.value)
    first, last = span or (0, len(answer))
    return Question(
        torch.cat([ids, torch.tensor(answer[:last], device=ids.device)]),
        len(ids) + first,
        len(ids) + last,
        sources,
        context.gold,
        _value(context, prompt, places, read["offset_mapping"]),
        None if not context.value else span is not None,
    )


def _has_chat(tokenizer: Any) -> bool:  # noqa: ANN401
    return getattr(tokenizer, "chat_template", None) is not None


def _prompt(tokenizer: Any, context: ContextExample) -> tuple[str, list[Span]]:  # noqa: ANN401
    """What the model is given, and the letters of each sentence in it."""
    text = " ".join(context.sentences)
    if _has_chat(tokenizer):
        message = [{"role": "user", "content": f"{text}\n\n{context.question}"}]
        prompt = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    else:
        prompt = f"{text}\n\n{context.question}\n"
    begin = prompt.find(text)
    if begin < 0:
        raise InputError("the chat template changes the text of the context, so its sentences cannot be found again.")
    ends = [begin + end for end in accumulate(len(sentence) + 1 for sentence in context.sentences)]
    return prompt, [(end - 1 - len(one), end - 1) for end, one in zip(ends, context.sentences, strict=True)]


def _answered(model: Any, tokenizer: Any, ids: Int[Tensor, " t"], count: int) -> list[int]:  # noqa: ANN401
    """The tokens that the model continues with, without those that end a text."""
    end = tokenizer.eos_token_id
    with torch.no_grad():
        every = model.generate(
            ids[None], attention_mask=torch.ones_like(ids)[None], max_new_tokens=count, do_sample=False,
            pad_token_id=tokenizer.pad_token_id if end is None else end,
        )[0]  # fmt: skip
    answer = every[len(ids) :].tolist()
    while answer and answer[-1] == end:
        answer.pop()
    if not answer:
        raise InputError("the model's answer is empty, so there is nothing to explain.")
    return answer


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
    found = [_some(model, question, some) for some in keep.split(batch)]
    return torch.cat(found).double().cpu()


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


def random_ablations(sources: int, count: int, seed: int = HELD_OUT_SEED) -> Keep:
    """Which sentences each ablation keeps: each with probability one half."""
    return torch.rand(count, sources, generator=torch.Generator().manual_seed(seed)) < 0.5


Scores = Callable[[Any, Question], Float[Tensor, " t"]]


def by_method(name: str, *, scalar: str = "log_probability", **options: Any) -> Scores:  # noqa: ANN401
    """The scores of all columns by a method of the table, for the log-probability of the answer or its log-odds."""

    def scores(model: Any, question: Question) -> Float[Tensor, " t"]:  # noqa: ANN401
        given = {
            **options,
            **({"sources": list(question.sources)} if "sources" in METHODS[name].options else {}),
        }
        target = continuation(question.start, question.stop, scalar=scalar)
        return explain(model, question.inputs, name, target, **given).scores[0].detach().float().cpu()

    return scores


def at_random(model: object, question: Question) -> Float[Tensor, " t"]:
    """A row that every method has to beat."""
    seed = int((question.ids.cpu() * torch.arange(1, len(question.ids) + 1)).sum())
    return torch.rand(len(question.ids), generator=torch.Generator().manual_seed(seed))


def by_position(model: object, question: Question) -> Float[Tensor, " t"]:
    """What the answer stands next to: later tokens first."""
    return torch.arange(len(question.ids)).float()


PRIORS: dict[str, Scores] = {"random": at_random, "position": by_position}
POOLS: dict[str, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
"""How the scores of a sentence's tokens become one."""


@dataclass(frozen=True)
class AnswerMeasures:
    """What one method reached on one question; NaN where a question has no such measure."""

    seconds: float
    lds: float = float("nan")
    drop: Mapping[int, float] = field(default_factory=dict)
    kept: Mapping[int, float] = field(default_factory=dict)
    recall: float = float("nan")
    reciprocal_rank: float = float("nan")

    def row(self) -> dict[str, float]:
        """The numbers by the names of their columns."""
        drops = {f"drop@{k}": x for k, x in self.drop.items()}
        kept = {f"kept@{k}": x for k, x in self.kept.items()}
        gold = {"recall@10%": self.recall, "mrr": self.reciprocal_rank}
        return {"lds": self.lds, **drops, **kept, **gold, "seconds": self.seconds}


@dataclass(frozen=True, eq=False)
class Ablations:
    """What became of one answer under random ablations, and its log-probability with the whole context."""

    keep: Keep
    values: Float[Tensor, " m"]
    whole: float


def ablations_of(model: nn.Module, question: Question, count: int) -> Ablations:
    """The answer of a question under held-out ablations."""
    keep = random_ablations(len(question.sources), count)
    values = scores_without(model, question, torch.cat([torch.ones_like(keep[:1]), keep]))
    return Ablations(keep, values[1:], float(values[0]))


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


def measure(
    model: nn.Module,
    question: Question,
    method: Scores,
    known: Ablations | None,
    *,
    pool: str = "sum",
    ks: Sequence[int] = (1, 3),
) -> AnswerMeasures:
    """Everything that a question allows.

    Args:
        known: the answer under held-out ablations; None leaves out what needs them.
        ks: how many sentences are removed, or kept alone.
    """
    begun = time.perf_counter()
    scores = method(model, question)
    seconds = time.perf_counter() - begun
    each = pooled(scores, question.sources, pool).double()
    gold: dict[str, Any] = {}
    if question.gold:
        order = each.argsort(descending=True, stable=True).tolist()
        gold = {"reciprocal_rank": 1 / (1 + min(order.index(place) for place in question.gold))}
        gold |= {"recall": recall(scores, question.sources, question.value)} if question.value else {}
    if known is None:
        return AnswerMeasures(seconds, **gold)
    best = torch.zeros(len(ks), len(each), dtype=torch.bool)
    for row, k in enumerate(ks):
        best[row, each.argsort(descending=True, stable=True)[:k]] = True
    after = scores_without(model, question, torch.cat([~best, best]))
    drop, kept = (known.whole - after).split(len(ks))
    numbers = {k: float(x) for k, x in zip(ks, drop, strict=True)}
    alone = {k: float(x) for k, x in zip(ks, kept, strict=True)}
    return AnswerMeasures(seconds, score_lds(each, known), numbers, alone, **gold)


def difference(
    ours: Sequence[float], theirs: Sequence[float], *, share: float = 1.0, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """The mean of `ours - share * theirs` over questions, and its 95 % interval by a paired bootstrap."""
    each = np.asarray(ours, dtype=float) - share * np.asarray(theirs, dtype=float)
    each = each[np.isfinite(each)]
    if not len(each):
        return float("nan"), float("nan"), float("nan")
    picks = np.random.default_rng(seed).integers(len(each), size=(resamples, len(each)))
    low, high = np.quantile(each[picks].mean(axis=1), [0.025, 0.975])
    return float(each.mean()), float(low), float(high)
