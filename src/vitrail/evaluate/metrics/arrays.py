"""Arguments of the metrics: arrays and tensors are read here, and what cannot be measured is refused with its values.

Also shared by several metrics: resizing maps, scaling them to 0..1, and average precision.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import InputError, OptionError, is_whole, suggest

Numbers: TypeAlias = Tensor | np.ndarray | Sequence[Any]
Entry = TypeVar("Entry")
TINY = float(np.finfo(np.float64).tiny)
"""The least divisor, and the least argument of a logarithm: what is 0 / 0 is 0."""


def look_up(table: Mapping[str, Entry], name: str, what: str) -> Entry:
    """The entry of this name."""
    if name not in table:
        raise OptionError(f"there is no {what} {name!r}. {suggest(name, table)}")
    return table[name]


def to_tensor(values: Numbers) -> Tensor:
    """The values as a tensor on the device they are on, without their graph."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.require(values, requirements=["C", "W"])  # torch takes no reversed and no locked arrays
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:  # rows of unequal length, or no numbers
        raise InputError(f"an array of numbers is needed, not {type(values).__name__}: {error}") from error


def to_array(values: Numbers) -> np.ndarray:
    """The values as an array; half precision, which NumPy knows only in part, becomes single."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()


def check_axes(shape: Sequence[int], name: str, axes: str) -> None:
    """Refuse an empty array and one with another number of axes than the letters name."""
    wanted = axes.split()
    if len(shape) != len(wanted) or 0 in shape:
        raise InputError(
            f"{name} must have the axes [{', '.join(wanted)}], none empty, but its shape is {list(shape)}."
        )


def check_no_nan(values: np.ndarray | Tensor, name: str) -> None:
    """Refuse NaN, and say in which examples it is."""
    bad = values.isnan() if isinstance(values, Tensor) else np.isnan(values)
    if not bad.any():
        return
    where = np.flatnonzero(to_array(bad).reshape(len(values), -1).any(axis=1)).tolist()
    raise InputError(f"{name}: {int(bad.sum())} of {to_array(values).size} values are NaN, in example {brief(where)}.")


def check_same(left: Sequence[int], right: Sequence[int], what: str) -> None:
    """Refuse two shapes, or parts of shapes, that should be the same."""
    if tuple(left) != tuple(right):
        raise InputError(f"{what} must be the same, but they are {list(left)} and {list(right)}.")


MOST_STEPS = 10_000
"""More steps, or pixels of a margin, than any result has a use for."""


def check_number(value: object, name: str, of: str, *, least: int = 1, most: int | None = None) -> None:
    """Refuse what is no whole number within bounds."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        bounds = f"at least {least}" + ("" if most is None else f" and at most {most}")
        raise InputError(f"{name} is a number of {of}, {bounds}, not {value!r:.80}.")


def brief(numbers: Sequence[int], most: int = 8) -> str:
    """The first few numbers as text."""
    return ", ".join(map(str, numbers[:most])) + (f" and {len(numbers) - most} more" if len(numbers) > most else "")


def numbers_of(values: Numbers, name: str, axes: str) -> np.ndarray:
    """A float64 array with these axes and no NaN."""
    array = to_array(values)
    check_axes(array.shape, name, axes)
    array = array.astype(np.float64)
    check_no_nan(array, name)
    return array


def flags_of(values: Numbers, name: str, axes: str) -> np.ndarray:
    """A boolean array with these axes, from booleans or zeros and ones."""
    array = to_array(values)
    check_axes(array.shape, name, axes)
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise InputError(f"{name} must hold True and False, but it holds values from {array.min()} to {array.max()}.")
    return array.astype(bool)


def maps_of(values: Numbers, name: str = "maps") -> Tensor:
    """Maps `[b, y, x]` in single precision or better, finite, on their device."""
    maps = to_tensor(values)
    check_axes(maps.shape, name, "b y x")
    maps = maps if maps.dtype == torch.float64 else maps.float()
    check_no_nan(maps, name)
    if not bool(maps.isfinite().all()):
        raise InputError(f"{name}: {int(maps.isinf().sum())} of {maps.numel()} values are infinite.")
    return maps


def resize(maps: Float[Tensor, "b y x"], size: tuple[int, int]) -> Float[Tensor, "b h w"]:
    """The maps at this size: bilinear with half-pixel centres."""
    if tuple(maps.shape[1:]) == tuple(size):
        return maps
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def min_max(maps: Float[Tensor, "b h w"]) -> Float[Tensor, "b h w"]:
    """Each map scaled to 0..1; a constant map becomes zeros."""
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    span = high - low
    return torch.where(span > 0, (maps - low) / span.clamp(min=torch.finfo(maps.dtype).tiny), 0.0)


def maps_and_masks(maps: Numbers, masks: Numbers) -> tuple[Tensor, Bool[Tensor, "b h w"], Bool[Tensor, "b h w"]]:
    """Maps at the size of the masks, the foreground, and the pixels that count (a mask's -1 does not)."""
    given, truth = maps_of(maps), to_tensor(masks).to(to_tensor(maps).device)
    check_axes(truth.shape, "masks", "b h w")
    check_same(given.shape[:1], truth.shape[:1], "the numbers of maps and of masks")
    if not bool(((truth == 0) | (truth == 1) | (truth == -1)).all()):
        raise InputError(
            f"masks hold 0 (background), 1 (foreground) and -1 (ignored), but these run from {truth.min().item()} "
            f"to {truth.max().item()}."
        )
    foreground, counted = truth == 1, truth != -1
    empty = (~foreground.flatten(1).any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise InputError(f"the masks of example {brief(empty)} have no foreground: leave these examples out.")
    return resize(given, (truth.shape[1], truth.shape[2])), foreground, counted


def average_precision(
    scores: Float[Tensor, "b n"], positive: Bool[Tensor, "b n"], counted: Bool[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """`sum_k (R_k - R_(k-1)) P_k` over the distinct scores, from the highest; 0 where nothing is positive.

    Args:
        scores: the ranking; equal scores are one step of the sum.
        positive: what should be ranked high.
        counted: entries that are not counted change neither precision nor recall.
    """
    ranked, order = scores.sort(dim=1, descending=True)
    found = (positive & counted).gather(1, order).cumsum(dim=1)
    seen = counted.gather(1, order).cumsum(dim=1)
    last = torch.ones_like(positive)  # of a run of equal scores
    last[:, :-1] = ranked[:, 1:] != ranked[:, :-1]
    # Counts never fall, so the running maximum holds the count at the end of the run before.
    before = torch.zeros_like(found)
    before[:, 1:] = (found * last).cummax(dim=1).values[:, :-1]
    steps = ((found - before) * last).to(scores.dtype) * found / seen.clamp(min=1)
    return steps.sum(dim=1) / found[:, -1].clamp(min=1)


def f1_of(hits: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return F1 from how many are right, predicted and gold; 0 where it is 0 / 0."""
    return 2 * hits / np.maximum(predicted + gold, 1)
