"""Metrics of texts and questions as the bench runs them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.explained import Shown, Values, neighbour
from vitrail.evaluate.bench.measure import TINY, Array, Column, CurvePanel, Measure, Stored, plain
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.texts import Texts
from vitrail.evaluate.metrics.rationales import top


def text_curve(how: str, mode: str | None = None) -> Callable[[Texts, Shown, Protocol], Values]:
    """The clean probability and that of every level, tokens deleted, replaced or kept alone."""

    def measure(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
        levels = mode or protocol.text_mode
        pairs = any(getattr(example, "second", None) is not None for example in batch.examples)
        found = metrics.text_curve(
            batch.score,
            batch.ids,
            real_rows(batch, shown.scores),
            torch.tensor(shown.classes),
            special=() if pairs and levels == "attcat" else batch.special,
            how=how,
            mode=levels,
            pad=batch.pad,
            batch=batch.settings.forward_batch,
        )
        return [{"p": p, "p_k": list(k)} for p, k in zip(found.p.tolist(), found.p_k.tolist(), strict=True)]

    return measure


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
    return [_token_f1(batch, shown.scores[i], protocol.ks, i) for i in range(len(batch.examples))]


def _token_f1(batch: Texts, scores: Tensor, ks: Sequence[int], number: int) -> dict[str, Any]:
    example, offsets = batch.examples[number], batch.encoding["offset_mapping"][number]
    gold = example.rationale_mask.numpy()  # pyright: ignore[reportAttributeAccessIssue]
    if not gold.any():
        raise InputError(f"{example.key}: the text has no rationale.")
    words = metrics.word_scores(scores.clamp(min=0), offsets, example.text)  # pyright: ignore[reportAttributeAccessIssue]
    chosen = [top(words[None], k)[0] for k in ks]
    return {
        "hits": [int((gold & some).sum()) for some in chosen],
        "chosen": [int(some.sum()) for some in chosen],
        "gold": int(gold.sum()),
    }


def precision_at_k(batch: Texts, shown: Shown, protocol: Protocol) -> Values:
    """How many tokens of the answer are among the k highest."""
    real = batch.encoding["attention_mask"].bool()
    spans = np.array([span for span in batch.spans if span is not None])
    found = metrics.precision_at_k(shown.scores.masked_fill(~real, -torch.inf), spans, k=protocol.k)
    return [{"count": int(n), "answer": int(last - first + 1)} for n, (first, last) in zip(found, spans, strict=True)]


def real_rows(batch: Texts, scores: Tensor) -> list[np.ndarray]:
    """The scores of the real tokens of each text."""
    real = batch.encoding["attention_mask"].bool().cpu()
    return [row[keep].numpy() for row, keep in zip(scores.cpu(), real, strict=True)]


def _drop(name: str, metric: str, *, higher: bool, absolute: bool = False) -> Column:
    def features(values: Stored) -> Array:
        drops = np.array([[row["p"]] for (row,) in values]) - np.array([row["p_k"] for (row,) in values])
        return (np.abs(drops) if absolute else drops).mean(axis=1, keepdims=True)

    return Column(name, (metric,), higher, features)


def _log_odds(values: Stored) -> Array:
    clean, removed = np.array([[row["p"]] for (row,) in values]), np.array([row["p_k"] for (row,) in values])
    return (np.log(np.maximum(removed, TINY)) - np.log(np.maximum(clean, TINY))).mean(axis=1, keepdims=True)


def _f1_columns(protocol: Protocol) -> list[Column]:
    """The mean over all k, and single ones: all of a short list, every fourth of a long one."""
    shown = range(len(protocol.ks)) if len(protocol.ks) <= 8 else range(3, len(protocol.ks), 4)
    whole = Column("token-F1", ("token_f1",), higher=True, features=lambda values: _f1(values).mean(1, keepdims=True))
    single = [Column(f"F1@{protocol.ks[i]}", ("token_f1",), higher=True, features=partial(_f1_at, i)) for i in shown]
    return [whole, *single]


def _f1(values: Stored) -> Array:
    """ERASER's F1 of every text at every k, in per cent."""
    return np.array([100 * _f1_curve(row) for (row,) in values])


def _f1_at(index: int, values: Stored) -> Array:
    return _f1(values)[:, [index]]


def _f1_curve(row: Mapping[str, Any]) -> Array:
    return 2 * np.array(row["hits"], dtype=np.float64) / np.maximum(np.array(row["chosen"]) + row["gold"], 1)


def _removal_panel(name: str) -> CurvePanel:
    """The probability level by level, the clean one first."""
    return CurvePanel(
        name, "level", "probability", lambda row: [row["p"], *row["p_k"]], lambda _, count: np.linspace(0, 1, count)
    )


_TEXT = ("text",)
DELETION = Measure(
    "text_deletion", "how far the probability falls while the highest-scored tokens are deleted",
    text_curve("delete"), _TEXT, lambda p: [_drop("AOPC", "text_deletion", higher=True, absolute=p.absolute)],
    panels=(_removal_panel("tokens deleted"),),
)  # fmt: skip
PADDING = Measure(
    "text_padding", "how far the log-probability falls while the highest-scored tokens become [PAD]",
    text_curve("pad"), _TEXT, lambda _: [Column("LOdds", ("text_padding",), higher=False, features=_log_odds)],
    panels=(_removal_panel("tokens padded"),),
)  # fmt: skip
COMPREHENSIVENESS = Measure(
    "comprehensiveness", "ERASER: how far the probability falls without the highest-scored tokens",
    text_curve("delete", "eraser"), _TEXT, lambda _: [_drop("comprehensiveness", "comprehensiveness", higher=True)],
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
