"""Remove tokens in the order of their scores, and watch the probability of the label.

Modes say how many tokens are removed at each level:
`paper`: 0, 10, ..., 100 % of the ordinary tokens (Qiang et al., "AttCAT", NeurIPS 2022).
`attcat`: as its released code does, nine levels of the whole length; special tokens count in the length but are not
removed, and the lowest-ranked token is never removed.
`eraser`: 1, 5, 10, 20 and 50 % of the ordinary tokens, rounded up (DeYoung et al., ACL 2020, arXiv:1911.03429).
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import (
    Numbers,
    brief,
    check_axes,
    check_no_nan,
    check_same,
    look_up,
    numbers_of,
    to_array,
)
from vitrail.evaluate.metrics.perturbation import read_logits

Ids = Int[np.ndarray, " t"]
Left = Int[np.ndarray, " _"]  # what is left of them
Flags = Bool[np.ndarray, " t"]
Plan = tuple[Int[np.ndarray, " c"], list[int]]  # the tokens that may go, first to go first; how many at each level


def _paper(ranking: Ids, ordinary: Flags) -> Plan:
    candidates = ranking[ordinary[ranking]]
    return candidates, [round(len(candidates) * tenth / 10) for tenth in range(11)]


def _attcat(ranking: Ids, ordinary: Flags) -> Plan:
    if len(ranking) < 10:
        raise InputError(
            f"mode 'attcat' skips texts of fewer than 10 tokens, and this one has {len(ranking)}: leave it out."
        )
    looked_at = ranking[:-1]
    levels = np.unique(np.round(np.linspace(0, 1, 10) * len(ranking)).astype(int))[1:]
    return looked_at[ordinary[looked_at]], levels.tolist()


def _eraser(ranking: Ids, ordinary: Flags) -> Plan:
    candidates = ranking[ordinary[ranking]]
    return candidates, [math.ceil(len(candidates) * percent / 100) for percent in (1, 5, 10, 20, 50)]


def _delete(ids: Ids, chosen: Flags, ordinary: Flags, pad: int) -> Left:
    return ids[~chosen]


def _pad(ids: Ids, chosen: Flags, ordinary: Flags, pad: int) -> Ids:
    return np.where(chosen, pad, ids)


def _keep(ids: Ids, chosen: Flags, ordinary: Flags, pad: int) -> Left:
    return ids[chosen | ~ordinary]


MODES: dict[str, Callable[[Ids, Flags], Plan]] = {"paper": _paper, "attcat": _attcat, "eraser": _eraser}
HOWS: dict[str, Callable[[Ids, Flags, Flags, int], Left]] = {"delete": _delete, "pad": _pad, "keep": _keep}


def perturbed_ids(
    ids: Numbers,
    scores: Numbers,
    *,
    special: Collection[int] = (),
    how: str = "delete",
    mode: str = "paper",
    pad: int = 0,
) -> list[Left]:
    """The id sequences of one text after its highest-scored tokens are taken, one for each level of the mode.

    Args:
        ids: `[t]`, without padding.
        scores: `[t]`.
        special: ids that are never taken, such as [CLS] and [SEP]; none, as AttCAT's code does for pairs of sentences.
        how: `"delete"` and close up, replace by `"pad"`, or `"keep"` only the highest-scored and the special ones.
        mode: how many tokens go at which level: `paper`, `attcat` or `eraser`.
        pad: the id of [PAD].
    """
    plan, change = look_up(MODES, mode, "mode"), look_up(HOWS, how, "way of removing tokens")
    tokens, ranked = to_array(ids).astype(np.int64), numbers_of(scores, "scores", "t")
    check_axes(tokens.shape, "ids", "t")
    check_same(tokens.shape, ranked.shape, "the numbers of ids and of scores")
    ordinary = ~np.isin(tokens, list(special))
    if not ordinary.any():
        raise InputError(f"all {len(tokens)} tokens are special: there is nothing to remove.")
    candidates, levels = plan(np.argsort(-ranked, kind="stable"), ordinary)
    return [change(tokens, _chosen(len(tokens), candidates[:level]), ordinary, pad) for level in levels]


def _chosen(length: int, places: Int[np.ndarray, " c"]) -> Flags:
    chosen = np.zeros(length, dtype=bool)
    chosen[places] = True
    return chosen


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
