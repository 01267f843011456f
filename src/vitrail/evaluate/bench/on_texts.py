"""Metrics of texts and questions as the bench runs them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.protocols import Protocol
from vitrail.evaluate.bench.shown import Shown, Values
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
