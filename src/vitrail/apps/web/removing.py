"""Remove parts of an input and watch the probability: in the order of a map, at random, from the centre, or by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from vitrail.apps.web.explaining import Case, Explorer
from vitrail.apps.web.model_cache import running
from vitrail.apps.web.workers import Job
from vitrail.attribution import Attribution
from vitrail.errors import InputError, OptionError, suggest
from vitrail.evaluate.metrics.fills import FILLS, filled
from vitrail.evaluate.metrics.perturbation import UNITS
from vitrail.evaluate.metrics.texts import HOWS, MODES, blank_id, kept_ids
from vitrail.evaluate.removal import picture_curves, seen_pixels, text_curves, text_logits

RANDOM = 8
"""Random orders that every map is compared with."""
LEVELS = tuple(step / 10 for step in range(11))
BATCH = 11
"""Pictures at once, as many as one order has. Small, so that progress is seen and a stop takes effect soon."""
CERTAIN = 0.975
AUTO = "auto"
Curve = Float[np.ndarray, " l"]


@dataclass(frozen=True, eq=False)
class Removal:
    """The probability of the class at every level, in the order of one map.

    Args:
        removed_at: for each patch, pixel or token the number of the level at which it is gone; 255 for never.
        shape: rows and columns of `removed_at`, for pictures.
    """

    curve: Curve
    removed_at: UInt8[np.ndarray, " n"]
    shape: tuple[int, int] | None


def advantage(curve: Curve, random: Float[np.ndarray, "r l"]) -> dict[str, float]:
    """Return how much smaller the area under a map's curve is than that of random orders.

    The mean difference, and where the difference to one more random order lies (95 %).
    """
    gains = random.mean(axis=1) - curve.mean()
    mean = float(gains.mean())
    reach = float(scipy.stats.t.ppf(CERTAIN, len(gains) - 1) * gains.std(ddof=1) * np.sqrt(1 + 1 / len(gains)))
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def check_fill(fill: str, kind: str) -> None:
    """Refuse a fill that does not exist."""
    if kind == "image" and fill != AUTO and fill not in FILLS:
        raise OptionError(f"there is no fill {fill!r}. {suggest(fill, FILLS)}")


def fill_of(explorer: Explorer, case: Case, target: int, fill: str, job: Job) -> str:
    """The fill that is asked for; `auto` is the one that hides most of the class. Text has none: tokens are cut out."""
    if case.kind == "text":
        return ""
    ends = ends_of(explorer, case, target, job)
    return min(ends, key=lambda name: ends[name]) if fill == AUTO else fill


def baselines(
    explorer: Explorer, case: Case, target: int, like: Attribution, fill: str, job: Job
) -> tuple[Float[np.ndarray, "r l"], Curve]:
    """A curve for each random order, and that of the order from the centre (of a text: from first to last)."""
    key = ("baselines", case.key, target, fill)
    if (curves := explorer.results.get(key)) is None:
        n = like.scores.shape[1]
        random = [torch.rand(n, generator=torch.Generator().manual_seed(seed)).double() for seed in range(RANDOM)]
        orders = torch.stack([*random, _from_centre(like)])
        with running(case.opened.twin, job, "removing parts at random", _passes(case, len(orders))):
            curves = explorer.results.put(key, _curves(case, target, like, orders, fill))
    return curves[:-1], curves[-1]


def removal(explorer: Explorer, case: Case, target: int, found: Attribution, fill: str, job: Job) -> Removal:
    """The curve of one map, computed once."""
    key = ("removal", case.key, target, found.method, found.preset, fill)
    if (known := explorer.results.get(key)) is not None:
        return known
    order = found.scores[:1].detach().cpu()  # in its own precision
    with running(case.opened.twin, job, f"removing parts in the order of {found.method}", _passes(case, 1)):
        (curve,) = _curves(case, target, found, order, fill)
    return explorer.results.put(key, Removal(curve, *REMOVED[case.kind](case, found, order)))


def _passes(case: Case, orders: int) -> int | None:
    """Return how often the model runs to remove parts in so many orders; not known for text."""
    return ceil(len(LEVELS) / max(1, BATCH // orders)) if case.kind == "image" else None


def _from_centre(like: Attribution) -> Float[Tensor, " n"]:
    """Scores that are highest in the middle of a picture, or at the beginning of a text."""
    if like.kind == "text":
        return -torch.arange(like.scores.shape[1]).double()
    assert like.grid is not None
    rows, columns = (torch.arange(count).double() - (count - 1) / 2 for count in like.grid)
    return -(rows[:, None] ** 2 + columns[None] ** 2).flatten()


def pixels_of(case: Case) -> Float[Tensor, "1 3 h w"]:
    """Return the pixels that the model saw, in 0..1."""
    assert case.sample.picture is not None
    return seen_pixels(case.opened.loaded, case.sample.picture)


def unit_of(like: Attribution) -> str:
    """Patches where they divide the picture, else pixels."""
    assert like.grid is not None
    assert like.size is not None
    even = all(side % count == 0 for side, count in zip(like.size, like.grid, strict=True))
    return "patches" if even else "pixels"


def _curves(case: Case, target: int, like: Attribution, orders: Tensor, fill: str) -> Float[np.ndarray, "o l"]:
    """The curve of each order."""
    loaded, labels = case.opened.twin.loaded, [target] * len(orders)
    if case.kind == "text":
        ids, _ = _ids(case)
        scores = [order.numpy() for order in orders]
        return text_curves(loaded, [ids] * len(orders), scores, labels, batch=BATCH).p_k
    assert like.grid is not None
    maps, how = orders.reshape(len(orders), *like.grid), {"fill": fill, "units": unit_of(like), "batch": BATCH}
    image = pixels_of(case)
    return picture_curves(loaded.logits, image, maps, labels, levels=LEVELS, **how).probability


def ends_of(explorer: Explorer, case: Case, target: int, job: Job) -> dict[str, float]:
    """The probability when the whole picture is replaced, by each fill; none for text."""
    if case.kind == "text":
        return {}
    key = ("ends", case.key)
    if (probs := explorer.results.get(key)) is None:
        whole = pixels_of(case)
        with running(case.opened.twin, job, "replacing everything"), torch.no_grad():
            logits = case.opened.twin.loaded.logits(torch.cat([filled(whole, fill) for fill in FILLS]))
        probs = explorer.results.put(key, logits.float().softmax(dim=1))
    return dict(zip(FILLS, probs[:, target].tolist(), strict=True))


def _removed_pixels(case: Case, like: Attribution, order: Tensor) -> tuple[UInt8[np.ndarray, " n"], tuple[int, int]]:
    assert like.grid is not None
    size, unit = pixels_of(case).shape[2:], unit_of(like)
    shape = like.grid if unit == "patches" else (size[0], size[1])
    masks = UNITS[unit](order.reshape(1, *like.grid), shape, LEVELS)(slice(0, 1), slice(0, len(LEVELS)))
    return _levels(masks[:, 0].flatten(1).numpy()), shape


def _levels(gone: Bool[np.ndarray, "l n"]) -> UInt8[np.ndarray, " n"]:
    """The first level at which each part is gone."""
    return np.where(gone.any(axis=0), gone.argmax(axis=0), 255).astype(np.uint8)


def _ids(case: Case) -> tuple[np.ndarray, Bool[np.ndarray, " t"]]:
    """The token ids, and which of them may be removed."""
    ids = torch.as_tensor(case.sample.inputs["input_ids"])[0].cpu().numpy()  # pyright: ignore[reportCallIssue, reportArgumentType]
    return ids, ~np.isin(ids, list(kept_ids(case.opened.loaded.tokenizer)))


def _removed_tokens(case: Case, like: Attribution, order: Tensor) -> tuple[UInt8[np.ndarray, " n"], None]:
    ids, ordinary = _ids(case)
    candidates, counts = MODES["paper"](np.argsort(-order[0].numpy(), kind="stable"), ordinary)
    places = np.arange(len(ids))
    return _levels(np.stack([np.isin(places, candidates[:count]) for count in counts])), None


REMOVED = {"image": _removed_pixels, "text": _removed_tokens}


def without(case: Case, cells: Sequence[int], fill: str, job: Job) -> Float[Tensor, " c"]:
    """The probabilities of all classes without these patches or tokens."""
    with running(case.opened, job, "asking again without them"), torch.no_grad():
        wanted = sorted(set(cells))
        logits = _without_tokens(case, wanted) if case.kind == "text" else _without_patches(case, wanted, fill)
        return logits[0].float().softmax(dim=0)


def _without_patches(case: Case, cells: list[int], fill: str) -> Float[Tensor, "1 c"]:
    image, grid = pixels_of(case), case.grid
    if grid is None:
        raise OptionError("the tokens of this model do not lie in a grid over the picture, so none can be removed.")
    if cells and cells[-1] >= grid[0] * grid[1]:
        raise InputError(f"patch {cells[-1]} does not exist: the picture has {grid[0]} x {grid[1]} patches, from 0 on.")
    chosen = torch.zeros(grid[0] * grid[1])
    chosen[cells] = 1
    mask = torch.nn.functional.interpolate(chosen.reshape(1, 1, *grid), size=image.shape[2:], mode="nearest") > 0
    return case.opened.loaded.logits(torch.where(mask, filled(image, fill), image))


def _without_tokens(case: Case, cells: list[int]) -> Float[Tensor, "1 c"]:
    ids, ordinary = _ids(case)
    if cells and cells[-1] >= len(ids):
        raise InputError(f"token {cells[-1]} does not exist: the text has {len(ids)} tokens, from 0 on.")
    blank = blank_id(case.opened.loaded.tokenizer)
    left = HOWS["cut"](ids, np.isin(np.arange(len(ids)), cells) & ordinary, ordinary, blank)
    together = torch.from_numpy(left)[None]
    return text_logits(case.opened.loaded, together, torch.ones_like(together))
