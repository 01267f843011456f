"""GradToken: the class-aware gradient of the query, compared with every key.

Cheng et al., "GradToken: Decoupling tokens with class-aware gradient for visual explanation of Transformer network",
Neural Networks 2024. Paper -> code: M -> `relevance`, A -> head mean of A, L -> I + A, B -> depth of the model.
Propagation runs from the block below the last down to block `depth`, which is the order in which a walk sees them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import Layer
from vitrail.errors import OptionError
from vitrail.methods.options import check_choice
from vitrail.relevance import LayerReader, Result, attention, pull, push, score_gradient

Maps = Float[Tensor, "b h t"]
NEEDS = frozenset({"query_grad", "output_grad"})
"""The second for a pooling query that has no gradient of its own."""


def query_gradient(last: Layer) -> Float[Tensor, "b h d"]:
    """Eq. 6: the gradient of the readout's query as autograd gives it; where the mean of tokens is read, their mean.

    A pooling query that all samples share has no gradient of its own in each; it follows from the chain rule.
    """
    if last.query_grad is None and last.pooling and last.plain and not last.by_hand:
        scores = pull(last, last.readout, score_gradient)
        return torch.einsum("bhk,bhkd->bhd", scores, last.keys) * last.scale
    gradient = last.gradient("query_grad")
    return torch.einsum("bq,bhqd->bhd", last.readout.to(gradient.dtype), gradient)


def class_relevance(last: Layer) -> Maps:
    """Eqs. 7 and 8: M_h[j] = k_hj . g_h, for the tokens after the prefix that the readout may see."""
    gradient = query_gradient(last)
    maps = torch.einsum("bhkd,bhd->bhk", last.keys.to(gradient.dtype), gradient) * last.content[:, None]
    return maps if last.visible is None else maps * (pull(last, last.readout, _visible) > 0)


def _visible(layer: Layer) -> Float[Tensor, "b h q k"]:
    assert layer.visible is not None
    return layer.visible.to(layer.probs.dtype).expand_as(layer.probs)


@dataclass(frozen=True)
class GradTokenState:
    """M, the row of the readout, and what the layers so far have made of them."""

    relevance: Maps
    row: Float[Tensor, "b t"]
    summed: Tensor | None = None


def roll_row(state: GradTokenState, layer: Layer) -> GradTokenState:
    """Eqs. 9 to 11: the readout's row of L^(B-1) ... L^1."""
    return replace(state, row=state.row + pull(layer, state.row, attention).mean(dim=1))


def roll_maps(state: GradTokenState, layer: Layer) -> GradTokenState:
    """Eq. 12: L^1 L^2 ... L^(B-1) applied to M."""
    return replace(state, relevance=state.relevance + push(layer, state.relevance.mT).mT)


def average_row(state: GradTokenState, layer: Layer) -> GradTokenState:
    """Eqs. 13 and 14: the readout's row of the mean attention."""
    row = pull(layer, state.row, attention).mean(dim=1) / layer.depth
    return replace(state, summed=row if state.summed is None else state.summed + row)


def average_maps(state: GradTokenState, layer: Layer) -> GradTokenState:
    """Eq. 15: the mean attention applied to M."""
    maps = push(layer, state.relevance.mT).mT / layer.depth
    return replace(state, summed=maps if state.summed is None else state.summed + maps)


def _summed(state: GradTokenState) -> Tensor:
    assert state.summed is not None
    return state.summed


Step = Callable[[GradTokenState, Layer], GradTokenState]
SCHEMES: dict[str, tuple[Step, Callable[[GradTokenState], Maps]]] = {
    "none": (lambda state, layer: state, lambda state: state.relevance),
    "rollout_elementwise": (roll_row, lambda state: state.row[:, None] * state.relevance),
    "rollout_matmul": (roll_maps, lambda state: state.relevance),
    "average_elementwise": (average_row, lambda state: _summed(state)[:, None] * state.relevance),
    "average_matmul": (average_maps, _summed),
}
"""Schemes 0 to 4 of the paper's Table 3: what each layer does, and how the result is read."""

HEADS: dict[str, Callable[[Maps], Float[Tensor, "b t"]]] = {
    "relu_mean": lambda maps: maps.clamp(min=0).mean(dim=1),
    "mean": lambda maps: maps.mean(dim=1),
}
"""Eq. 17 (clamp, then mean) and Eq. 18 (plain mean)."""


def build(*, scheme: str = "average_matmul", heads: str = "relu_mean", depth: int = 1) -> LayerReader:
    """Class relevance of every token, propagated by the attention of the blocks below.

    Args:
        scheme: how attention is aggregated over blocks and applied.
        heads: how the heads' maps are joined.
        depth: the lowest block that takes part, counted from one as in the paper.
    """
    descend, read = check_choice("scheme", scheme, SCHEMES)
    join = check_choice("heads", heads, HEADS)

    def start(last: Layer) -> GradTokenState:
        if scheme != "none" and not 1 <= depth < last.depth:
            below = f"blocks 1 to {last.depth - 1} lie" if last.depth > 1 else "no block lies"
            raise OptionError(f"depth={depth}, but {below} below the last one. scheme='none' needs none.")
        row = pull(last, last.readout, attention).mean(dim=1) if last.pooling else last.readout
        return GradTokenState(class_relevance(last), row)

    def step(state: GradTokenState, layer: Layer) -> GradTokenState:
        return descend(state, layer) if depth - 1 <= layer.index and not layer.is_last else state

    def finish(state: GradTokenState, first: Layer) -> Result:
        maps = read(state) * first.content[:, None]
        return Result(join(maps), heads=maps)

    return LayerReader(step, start, finish, needs=NEEDS, last_only=True)
