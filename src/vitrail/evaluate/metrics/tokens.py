"""Take the highest-scored tokens out of a text: which ids are left, level by level.

Modes say how many tokens go at each level:
`paper`: 0, 10, ..., 100 % of the ordinary tokens (Qiang et al., "AttCAT", NeurIPS 2022).
`attcat`: as its released code does, nine levels of the whole length, special tokens counted in the length but not
taken, and the lowest-ranked token never taken.
`eraser`: 1, 5, 10, 20 and 50 % of the ordinary tokens, rounded up (DeYoung et al., ACL 2020, arXiv:1911.03429).
"""

import math
from collections.abc import Callable, Collection

import numpy as np
from jaxtyping import Bool, Int

from vitrail.errors import InputError
from vitrail.evaluate.metrics.arrays import Numbers, check_axes, check_same, look_up, numbers_of, to_array

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
