"""DIX: gradients of attention, integrated while the attention of one of the last two blocks grows from zero.

Barkan et al., "Deep Integrated Explanations", CIKM 2023, for Vision Transformers. Paper -> code: a -> tau, the layers
integrated over -> the last block and the one before it, [G * A]^+ -> positive.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer, Probs
from vitrail.capture.recording.pass_options import PassOptions, Wanted
from vitrail.capture.seams.intercept import Override, in_place_of
from vitrail.methods.options import check_blocks, check_choice, check_count, show_progress
from vitrail.relevance import Result, positive, tiles
from vitrail.relevance.runner import RerunMethod, Runner

Maps = list[Float[Tensor, "..."]]  # each `[b, q, k]`; a pooling query has one row
NEEDS = frozenset({"output_grad"})
SOURCES: dict[str, Callable[[int, int], int]] = {"own": lambda place, last: place, "last": lambda place, last: last}
"""Whose attention is put into a block: its own, or the last block's, by the indices of both."""


def head_mean(layer: Layer) -> Float[Tensor, "b q k"]:
    """The mean over heads of the positive part of G * A."""
    return torch.cat([positive(tile).mean(dim=1) for _, tile in tiles(layer)], dim=1)


def roll(relevance: Float[Tensor, "b q"], mixing: Float[Tensor, "b q k"], layer: Layer) -> Float[Tensor, "b k"]:
    """One factor of the rollout: the row times `mixing + I`, each row of which is divided by its sum."""
    sums = mixing.sum(dim=2) + (0 if layer.pooling else 1)
    shares = relevance / sums.clamp(min=torch.finfo(sums.dtype).tiny)
    return (shares[:, None] @ mixing).squeeze(1) + layer.carry(shares)


def rollout(maps: Maps, layers: list[Layer]) -> Float[Tensor, "b t"]:
    """The readout's row of the product of all factors."""
    relevance = layers[-1].readout
    for mixing, layer in zip(reversed(maps), reversed(layers), strict=True):
        relevance = roll(relevance, mixing, layer)
    return relevance


def replacing(place: int, attention: Probs) -> Override:
    """This map in one block, whatever its own would be; all others as they are."""
    return Override(weights=lambda block, weights: in_place_of(weights, attention) if block == place else weights)


def integrate(runner: Runner, place: int, attention: Probs, *, steps: int) -> Maps:
    """For each layer, the mean of `head_mean` over `steps + 1` sizes of the attention put into one block."""
    maps: Maps = [torch.zeros(())] * runner.run.depth
    for step in show_progress(range(steps + 1), f"dix, block {place}"):
        with runner.again(NEEDS, PassOptions(override=replacing(place, step / steps * attention))) as (run, part):
            for layer in run.layers(part, Wanted.of(NEEDS), again=False):
                maps[layer.index] = maps[layer.index].to(layer.valid.device) + head_mean(layer) / (steps + 1)
    return maps


def build(*, steps: int = 10, inject: str = "own") -> RerunMethod:
    """Positive gradient times attention, averaged while a block's attention grows from zero, and rolled out.

    Args:
        steps: how many steps the attention takes from zero to its full size; both ends count.
        inject: what grows in the block before the last: its `own` attention, or the `last` block's as in the released
            code.
    """
    source = check_choice("inject", inject, SOURCES)
    check_count("steps", steps)

    def explain(runner: Runner) -> Result:
        layers = runner.layers(frozenset())
        last = len(runner.body.blocks) - 1
        rows = [
            rollout(integrate(runner, place, layers[source(place, last)].probs, steps=steps), layers)
            for place in (last, last - 1)
        ]
        return Result(rows[0] + rows[1])

    return RerunMethod(explain, needs=NEEDS, check=check_blocks("dix", least=2))
