"""Metrics of texts, questions and answers as the bench runs them.

Of an answer: does the explanation find the sentences of the context that it depends on?
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import answers, metrics, removal
from vitrail.evaluate.bench.measure import Array, Column, CurvePanel, Measure, Shown, Stored, Values, plain
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.texts import Batch, Contexts, Texts
from vitrail.evaluate.data.examples import TextExample
from vitrail.evaluate.metrics.areas import drops, log_ratios
from vitrail.evaluate.metrics.arrays import f1_of
from vitrail.evaluate.metrics.texts import top


def text_curve(how: str, mode: str | None = None) -> Callable[[Texts, Shown, Protocol], Values]:
    """The clean probability and that of every level, tokens deleted, replaced or kept alone."""

    def measure(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
        levels = mode or protocol.text_mode
        pairs = any(getattr(example, "second", None) is not None for example in batch.examples)
        found = removal.text_curves(
            batch.opened.loaded,
            real_rows(batch, batch.inputs["input_ids"]),
            real_rows(batch, shown.scores),
            shown.classes,
            how=how,
            mode=levels,
            special=() if pairs and levels == "attcat" else None,
            score=batch.score,
            batch=batch.settings.forward_batch,
        )
        return [{"p": p, "p_k": list(k)} for p, k in zip(found.p.tolist(), found.p_k.tolist(), strict=True)]

    return measure


def neighbour(batch: Texts, classes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Another one, as AttCAT's code chooses it: the one before, 1 for class 0."""
    return tuple((c - 1 if c > 0 else 1,) for c in classes)


def kendall(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
    """Tau between the scores for the explained class and for another one."""
    other = torch.cat([next(iter(maps.values())).scores for maps in shown.others])
    pairs = zip(real_rows(batch, shown.scores), real_rows(batch, other), strict=True)
    found = [metrics.kendall(a[None], b[None], mode=protocol.kendall)[0] for a, b in pairs]
    if np.isnan(found).any():
        raise InputError("all scores of this text are equal, so they rank nothing.")
    return [{"tau": float(tau)} for tau in found]


def token_f1(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
    """For every k, how many of the k highest words are gold."""
    found = []
    for example, scores, offsets in zip(batch.examples, shown.scores, batch.inputs["offset_mapping"], strict=True):
        assert isinstance(example, TextExample)
        gold = example.rationale_mask.numpy()
        if not gold.any():
            raise InputError(f"{example.key}: the text has no rationale.")
        words = metrics.word_scores(scores.clamp(min=0), offsets, example.text)
        chosen = [top(words[None], k)[0] for k in protocol.ks]
        hits = [int((gold & some).sum()) for some in chosen]
        found.append({"hits": hits, "chosen": [int(some.sum()) for some in chosen], "gold": int(gold.sum())})
    return found


def precision_at_k(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
    """Measure how many tokens of the answer are among the k highest."""
    real = batch.inputs["attention_mask"].bool()
    spans = np.array([span for span in batch.spans if span is not None])
    found = metrics.precision_at_k(shown.scores.masked_fill(~real, -torch.inf), spans, k=protocol.k)
    return [{"count": int(n), "answer": int(last - first + 1)} for n, (first, last) in zip(found, spans, strict=True)]


def real_rows(batch: Batch, scores: Tensor) -> list[np.ndarray]:
    """The scores of each example, without padding."""
    if not isinstance(batch, Texts):
        return list(scores.cpu().numpy())
    real = batch.inputs["attention_mask"].bool().cpu()
    return [row[keep].numpy() for row, keep in zip(scores.cpu(), real, strict=True)]


def _drop(name: str, metric: str, *, higher: bool, absolute: bool = False) -> Column:
    def features(values: Stored) -> Array:
        return drops(*_probabilities(values), absolute=absolute).mean(axis=1, keepdims=True)

    return Column(name, (metric,), higher, features)


def _log_odds(values: Stored) -> Array:
    return log_ratios(*_probabilities(values)).mean(axis=1, keepdims=True)


def _probabilities(values: Stored) -> tuple[Array, Array]:
    """The clean probability of each text, and those at each level."""
    return np.array([row["p"] for (row,) in values]), np.array([row["p_k"] for (row,) in values])


def _f1_columns(protocol: Protocol) -> list[Column]:
    """The mean over all k, and single ones: all of a short list, every fourth of a long one."""
    shown = range(len(protocol.ks)) if len(protocol.ks) <= 8 else range(3, len(protocol.ks), 4)
    whole = Column("token-F1", ("token_f1",), higher=True, features=lambda values: _f1(values).mean(1, keepdims=True))
    single = [
        Column(f"F1@{protocol.ks[i]}", ("token_f1",), higher=True, features=lambda values, i=i: _f1(values)[:, [i]])
        for i in shown
    ]
    return [whole, *single]


def _f1(values: Stored) -> Array:
    """ERASER's F1 of every text at every k, in per cent."""
    return np.array([100 * _f1_curve(row) for (row,) in values])


def _f1_curve(row: Mapping[str, Any]) -> Array:
    return f1_of(np.array(row["hits"], dtype=np.float64), np.array(row["chosen"]), row["gold"])


def _removal_panel(name: str) -> CurvePanel:
    """The probability level by level, the clean one first."""
    return CurvePanel(
        name, "level", "probability", lambda row: [row["p"], *row["p_k"]], lambda _, count: np.linspace(0, 1, count)
    )


_TEXT = ("text",)
DELETION = Measure(
    "text_deletion", "how far the probability falls while the highest-scored tokens are deleted",
    text_curve("cut"), _TEXT, lambda p: [_drop("AOPC", "text_deletion", higher=True, absolute=p.absolute)],
    panels=(_removal_panel("tokens deleted"),),
)  # fmt: skip
PADDING = Measure(
    "text_padding", "how far the log-probability falls while the highest-scored tokens become [PAD]",
    text_curve("pad"), _TEXT, lambda _: [Column("LOdds", ("text_padding",), higher=False, features=_log_odds)],
    panels=(_removal_panel("tokens padded"),),
)  # fmt: skip
COMPREHENSIVENESS = Measure(
    "comprehensiveness", "ERASER: how far the probability falls without the highest-scored tokens",
    text_curve("cut", "eraser"), _TEXT, lambda _: [_drop("comprehensiveness", "comprehensiveness", higher=True)],
)  # fmt: skip
SUFFICIENCY = Measure(
    "sufficiency", "ERASER: how far the probability falls with the highest-scored tokens only",
    text_curve("keep", "eraser"), _TEXT, lambda _: [_drop("sufficiency", "sufficiency", higher=False)],
)  # fmt: skip
KENDALL = Measure(
    "kendall", "rank correlation of the scores for two classes", kendall, _TEXT,
    lambda _: [plain("Kendall", "kendall", "tau", higher=False)], further=neighbour,
)  # fmt: skip
TOKEN_F1 = Measure(
    "token_f1", "agreement of the highest-scored words with the rationale", token_f1, _TEXT, _f1_columns,
    frozenset({"rationale"}),
    panels=(CurvePanel("token F1", "k", "F1", _f1_curve, lambda protocol, _: np.array(protocol.ks)),),
)  # fmt: skip
PRECISION_AT_K = Measure(
    "precision_at_k", "how many tokens of the answer are among the highest-scored", precision_at_k, ("question",),
    lambda p: [plain(f"Precision@{p.k}", "precision_at_k", "count")], frozenset({"answers"}),
)  # fmt: skip


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


def best_sentences(*, kept: bool) -> Callable[[Contexts, Shown, Protocol], Values]:
    """The log-probability of the answer with the whole context; without the best k sentences, or with them alone."""

    def measure(batch: Contexts, shown: Shown, protocol: Protocol) -> Values:
        found = []
        for number in range(len(batch.keys)):
            order = _pooled(batch, shown, protocol, number).argsort(descending=True, stable=True)
            best = torch.zeros(len(protocol.ks), len(order), dtype=torch.bool)
            for row, k in enumerate(protocol.ks):
                best[row, order[:k]] = True
            whole = batch.ablations(number, protocol.ablations).whole
            found.append({"p": whole, "p_k": batch.scores(number, best if kept else ~best).tolist()})
        return found

    return measure


def _drops(name: str, metric: str, protocol: Protocol, *, higher: bool) -> list[Column]:
    def drop(place: int, values: Stored) -> Array:
        return np.array([[row["p"] - row["p_k"][place]] for (row,) in values])

    return [Column(f"{name}@{k}", (metric,), higher, partial(drop, place)) for place, k in enumerate(protocol.ks)]


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
    "answer_drop", "how far the answer's log-probability falls without the highest-scored sentences",
    best_sentences(kept=False), _ANSWER, lambda p: _drops("drop", "answer_drop", p, higher=True),
)  # fmt: skip
ANSWER_SUFFICIENCY = Measure(
    "answer_sufficiency", "how far the answer's log-probability falls with the highest-scored sentences only",
    best_sentences(kept=True), _ANSWER, lambda p: _drops("alone", "answer_sufficiency", p, higher=False),
)  # fmt: skip
