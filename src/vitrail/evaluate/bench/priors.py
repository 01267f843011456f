"""Rows of every table that read nothing of the model: a method has to beat both.

`random` draws a number for each patch or token, the same in every run. `centre` is higher the closer a patch is to the
middle of the picture, `position` the earlier a token stands in a text; next to an answer later tokens come first.
"""

import hashlib
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.evaluate.bench.measure import Classes, Measure, Shown
from vitrail.evaluate.bench.pictures import Pictures
from vitrail.evaluate.bench.texts import Texts

RANKS = "ranks"
"""The measure of how far the maps of two methods agree."""


def seed_of(seed: int, key: str) -> int:
    """The seed of the random scores of one example."""
    return int.from_bytes(hashlib.sha256(f"prior {seed} {key}".encode()).digest()[:7])


def at_random(batch: Pictures | Texts, count: int) -> Float[Tensor, "b n"]:
    """A number for each patch or token of each example, whatever batch it is in."""
    draws = (torch.Generator().manual_seed(seed_of(batch.settings.seed, key)) for key in batch.keys)
    return torch.stack([torch.rand(count, generator=draw) for draw in draws])


def central(grid: tuple[int, int]) -> Float[Tensor, "y x"]:
    """One in the middle of the picture, less the farther away, zero in the corners' direction at the distance one."""
    rows, columns = (torch.linspace(-1, 1, side + 2)[1:-1] for side in grid)
    return 1 - (rows[:, None].square() + columns.square()).sqrt() / 2**0.5


def of_pictures(name: str, batch: Pictures) -> Float[Tensor, "b y x"]:
    """The map of a prior on the model's patches."""
    rows, columns = batch.grid
    if name == "random":
        return at_random(batch, rows * columns).view(-1, rows, columns)
    return central(batch.grid).expand(len(batch.keys), -1, -1)


def of_texts(name: str, batch: Texts) -> Float[Tensor, "b t"]:
    """The scores of a prior on tokens, padding zero."""
    mask = batch.inputs["attention_mask"].cpu()
    tokens = mask.shape[1]
    earlier = torch.arange(tokens, 0, -1).float().expand(len(mask), -1) / tokens
    return (at_random(batch, tokens) if name == "random" else earlier) * mask


def shown(name: str, batch: Pictures | Texts, classes: Classes) -> Shown:
    """Return the maps of a prior for a batch, whatever the class."""
    if isinstance(batch, Texts):
        return Shown(of_texts(name, batch).to(batch.opened.device), classes)
    maps = of_pictures(name, batch).to(batch.images.device)
    return Shown(maps.flatten(1), classes, maps)


def measures(metrics: tuple[str, ...], known: Mapping[str, Measure]) -> tuple[str, ...]:
    """The metrics that say something of a prior: not how it depends on weights, and not how it agrees with others."""
    return tuple(name for name in metrics if not known[name].randomised and name != RANKS)
