"""Metrics of explained answers: does the explanation find the sentences that the answer depends on?"""

from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import answers
from vitrail.evaluate.bench.explained import Shown, Values
from vitrail.evaluate.bench.measure import Array, Column, Measure, Stored, plain
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.texts import Contexts


def _tokens(shown: Shown, number: int) -> Float[Tensor, " n"]:
    """The scores of one text, if the method has them."""
    reason = shown.failed[number]
    if reason is not None:
        raise InputError(reason)
    if not bool(shown.scores[number].isfinite().all()):
        raise InputError("the scores have NaN or infinite values.")
    return shown.scores[number]


def _pooled(batch: Contexts, shown: Shown, protocol: Protocol, number: int) -> Float[Tensor, " s"]:
    """One score for each sentence."""
    return answers.pooled(_tokens(shown, number), batch.questions[number].sources, protocol.pool).double()


def gold_recall(batch: Contexts, shown: Shown, protocol: Protocol) -> Values:
    """The share of the value's tokens among the best k % of the context."""
    found = []
    for number, question in enumerate(batch.questions):
        if not question.value:
            raise InputError("the words of the context that the answer repeats are not known.")
        found.append({"recall": answers.recall(_tokens(shown, number), question.sources, question.value, protocol.k)})
    return found


def gold_rank(batch: Contexts, shown: Shown, protocol: Protocol) -> Values:
    """The rank of the first sentence that holds the answer; the worst one where others have the same score."""
    found = []
    for number, question in enumerate(batch.questions):
        if not question.gold:
            raise InputError("the sentences that hold the answer are not known.")
        each = _pooled(batch, shown, protocol, number)
        found.append({"rank": min(int((each >= each[place]).sum()) for place in question.gold)})
    return found


def lds(batch: Contexts, shown: Shown, protocol: Protocol) -> Values:
    """The linear datamodeling score on ablations that nothing was fitted to."""
    found = []
    for number in range(len(batch.keys)):
        known = batch.ablations(number, protocol.ablations)
        found.append({"lds": answers.score_lds(_pooled(batch, shown, protocol, number), known)})
    return found


def answer_drop(batch: Contexts, shown: Shown, protocol: Protocol) -> Values:
    """The log-probability of the answer with the whole context, and without the best k sentences."""
    return [_best(batch, shown, protocol, number, kept=False) for number in range(len(batch.keys))]


def answer_sufficiency(batch: Contexts, shown: Shown, protocol: Protocol) -> Values:
    """The log-probability of the answer with the whole context, and with the best k sentences alone."""
    return [_best(batch, shown, protocol, number, kept=True) for number in range(len(batch.keys))]


def _best(batch: Contexts, shown: Shown, protocol: Protocol, number: int, *, kept: bool) -> dict[str, object]:
    each = _pooled(batch, shown, protocol, number)
    best = torch.zeros(len(protocol.ks), len(each), dtype=torch.bool)
    for row, k in enumerate(protocol.ks):
        best[row, each.argsort(descending=True, stable=True)[:k]] = True
    whole = batch.ablations(number, protocol.ablations).whole
    return {"p": whole, "p_k": batch.scores(number, best if kept else ~best).tolist()}


def _drop_at(index: int, values: Stored) -> Array:
    return np.array([[row["p"] - row["p_k"][index]] for (row,) in values])


def _drops(name: str, metric: str, protocol: Protocol, *, higher: bool) -> list[Column]:
    return [Column(f"{name}@{k}", (metric,), higher, partial(_drop_at, index)) for index, k in enumerate(protocol.ks)]


def _reciprocal(values: Stored) -> Array:
    return np.array([[1 / row["rank"]] for (row,) in values])


_ANSWER, _GOLD = ("answer",), frozenset({"gold"})
GOLD_RECALL = Measure(
    "gold_recall", "share of the tokens that the answer repeats among the highest-scored of the context", gold_recall,
    _ANSWER, lambda p: [plain(f"recall@{p.k} %", "gold_recall", "recall")], _GOLD,
)  # fmt: skip
GOLD_RANK = Measure(
    "gold_rank", "mean reciprocal rank of the sentence that holds the answer", gold_rank, _ANSWER,
    lambda _: [Column("MRR", ("gold_rank",), higher=True, features=_reciprocal)], _GOLD,
)  # fmt: skip
LDS = Measure(
    "lds", "rank correlation of summed sentence scores with the answer's log-probability under random ablations", lds,
    _ANSWER, lambda _: [plain("LDS", "lds", "lds")],
)  # fmt: skip
ANSWER_DROP = Measure(
    "answer_drop", "how far the answer's log-probability falls without the highest-scored sentences", answer_drop,
    _ANSWER, lambda p: _drops("drop", "answer_drop", p, higher=True),
)  # fmt: skip
ANSWER_SUFFICIENCY = Measure(
    "answer_sufficiency", "how far the answer's log-probability falls with the highest-scored sentences only",
    answer_sufficiency, _ANSWER, lambda p: _drops("alone", "answer_sufficiency", p, higher=False),
)  # fmt: skip
