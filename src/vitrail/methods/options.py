"""What several methods share in reading their options."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording import Layer
from vitrail.errors import OptionError, suggest
from vitrail.relevance import Result

T = TypeVar("T")

ROWS: dict[str, Callable[[Layer], Float[Tensor, "b q"]]] = {
    "readout": lambda layer: layer.readout,
    "mean": lambda layer: layer.every_query,
}
"""Which rows of a map are read: the readout's, or the mean over all real queries."""

PRECISIONS: dict[str, torch.dtype | None] = {"model": None, "float64": torch.float64, "float32": torch.float32}
"""In which precision relevance is propagated; None is the model's own."""


def check_choice(option: str, value: object, table: Mapping[str, T]) -> T:
    """What an option's value stands for, or an error that names the values there are."""
    if not isinstance(value, str) or value not in table:
        raise OptionError(f"{option}={value!r} is not a choice. {suggest(value, table)}")
    return table[value]


def check_count(option: str, value: int) -> None:
    """Raise if an option that counts something is not at least one."""
    if value < 1:
        raise OptionError(f"{option}={value}, but it has to be at least 1.")


def check_start_layer(start_layer: int, layer: Layer) -> None:
    """Raise if the model has no such layer."""
    if not 0 <= start_layer < layer.depth:
        raise OptionError(f"start_layer={start_layer}, but the model's layers are 0 to {layer.depth - 1}.")


def without_readout(zero: bool) -> Callable[[Tensor, Layer], Result]:  # noqa: FBT001
    """A `finish` that gives the scores as they are, or with the readout's own entry set to zero."""

    def finish(scores: Float[Tensor, "b t"], first: Layer) -> Result:
        own = first.readout == 1  # a mean over tokens has no entry of its own
        return Result(torch.where(own, torch.zeros_like(scores), scores) if zero else scores)

    return finish
