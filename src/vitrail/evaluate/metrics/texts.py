"""The probability of the label while tokens are taken out of texts: what AOPC, LOdds and ERASER's scores need."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, brief, check_no_nan, check_same, to_array
from vitrail.evaluate.metrics.tokens import Left, perturbed_ids
from vitrail.evaluate.metrics.watching import read_logits

TextScore = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TextCurve:
    """The label's probability for each text as it is, and at each level: `aopc(curve.p, curve.p_k)`."""

    p: Float[np.ndarray, " n"]
    p_k: Float[np.ndarray, "n l"]


@torch.no_grad()
def text_curve(  # noqa: PLR0913  (one option for each convention the papers differ in)
    score: TextScore,
    ids: Sequence[Numbers],
    scores: Sequence[Numbers],
    labels: Numbers,
    *,
    special: Collection[int] = (),
    how: str = "delete",
    mode: str = "paper",
    pad: int = 0,
    batch: int = 64,
) -> TextCurve:
    """Take the highest-scored tokens out of every text, level by level, and look at the label's probability.

    AttCAT's AOPC deletes and its LOdds replaces by [PAD], which then is not masked.

    Args:
        score: ids and attention mask `[n, t]` -> logits `[n, classes]`; it moves them as its model needs.
        ids: one sequence per text, without padding.
        scores: one score per id.
        labels: `[n]`; AttCAT's paper takes the predicted class, its code the label of the data set.
        special: ids that are never taken.
        how: `delete`, `pad` or `keep`, as in `perturbed_ids`.
        mode: `paper`, `attcat` or `eraser`.
        pad: the id of [PAD].
        batch: sequences that go through `score` at once; they are sorted by length, so that little is padded.
    """
    classes = to_array(labels).astype(np.int64)
    check_same([len(ids)] * 2, [len(scores), len(classes)], "the number of texts, and those of scores and labels")
    if not len(ids):
        raise InputError("there are no texts to perturb.")
    versions = [
        [
            to_array(one).astype(np.int64),
            *perturbed_ids(one, ranked, special=special, how=how, mode=mode, pad=pad),
        ]
        for one, ranked in zip(ids, scores, strict=True)
    ]
    empty = [index for index, texts in enumerate(versions) if not all(map(len, texts))]
    if empty:
        raise InputError(
            f"nothing is left of text {brief(empty)} at some level: name the special ids to keep (special=)."
        )
    sequences = [sequence for texts in versions for sequence in texts]
    log_probs = _run(score, sequences, np.repeat(classes, len(versions[0])), pad=pad, batch=batch)
    table = np.exp(log_probs).reshape(len(versions), -1)
    return TextCurve(table[:, 0], table[:, 1:])


def _run(
    score: TextScore, sequences: Sequence[Left], labels: np.ndarray, *, pad: int, batch: int
) -> Float[np.ndarray, " m"]:
    """The log-probability of each sequence's label."""
    if batch < 1:
        raise InputError(f"batch is a number of texts, at least 1, not {batch}.")
    log_probs, bounds = np.zeros(len(sequences)), (int(labels.min()), int(labels.max()))
    order = np.argsort([len(sequence) for sequence in sequences], kind="stable")
    for some in np.split(order, range(batch, len(order), batch)):
        together = torch.full((len(some), len(sequences[some[-1]])), pad)
        mask = torch.zeros_like(together)
        for row, index in enumerate(some):
            together[row, : len(sequences[index])] = torch.from_numpy(sequences[index])
            mask[row, : len(sequences[index])] = 1
        _, likely = read_logits(score(together, mask), torch.from_numpy(labels[some]), bounds)
        log_probs[some] = to_array(likely)
    check_no_nan(log_probs, "the logits score returned")
    return log_probs
