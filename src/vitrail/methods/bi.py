"""Beyond Intuition: attention perception, weighed by heads or by tokens, times reasoning feedback.

Chen et al., "Beyond Intuition: Rethinking Token Attributions inside Transformers", TMLR 2023.
Paper -> code: A, G -> `probs`, `probs_grad`; I_h -> `head_importance`; m_j -> `token_growth`; rows of R -> `rows`;
F -> `feedback`. The readout's rows walk from the last layer down, so R itself is never formed where one token is read.
"""

from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.capture.recording.layer import Layer, widen
from vitrail.errors import AnatomyError, MissingTensorError
from vitrail.methods.options import without_readout
from vitrail.methods.paths import (
    LAST,
    carried,
    check_counts,
    check_path,
    feedback,
    first_layer,
    mean_gradient,
    pull_rows,
    rows_read,
    summed,
)
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result, attention, gradient, tiles
from vitrail.relevance.runner import RerunMethod, Runner

Rows = Float[Tensor, "b r q"]
Step = Callable[[Rows, Layer], Float[Tensor, "b r t"]]
START_HEAD = {"image": 3, "text": -1}
START_TOKEN = {"image": 5, "text": -4}
"""The first layer of the released code, counted from zero, or from the end if negative."""


def head_importance(layer: Layer) -> Float[Tensor, "b h"]:
    """`I_h = mean_ij |(A_h^T G_h)_ij|` over real tokens, divided by its sum over heads; zero without any gradient."""
    product = summed(tile.probs.transpose(2, 3) @ gradient(tile) for _, tile in tiles(layer))
    # Both A and G are zero at keys that are padding. The number of entries is the same for all heads and cancels.
    sizes = product.abs().sum(dim=(2, 3))
    total = sizes.sum(dim=1, keepdim=True)
    return sizes / torch.where(total > 0, total, torch.ones_like(total))


def head_step(rows: Rows, layer: Layer) -> Float[Tensor, "b r t"]:
    """`R <- R + A_bar R` with `A_bar = sum_h I_h A_h`, one row of R at a time."""
    importance = head_importance(layer)
    return carried(rows, layer) + torch.einsum("bh,bhrk->brk", importance, pull_rows(layer, rows, attention))


def token_growth(layer: Layer) -> Float[Tensor, "b t"]:
    """`m_j = ||v_j W_O|| / ||x_j||`: how much longer a token is after the value and output projections."""
    entering, weight = layer.state("entering"), widen(layer.get("output_weight"))
    values = rearrange(layer.values, "b h t d -> b t (h d)")
    if weight.shape != (entering.shape[2], values.shape[2]):
        raise MissingTensorError(
            f"the output projection of block {layer.index} is {tuple(weight.shape)}, but values of {values.shape[2]} "
            f"channels into a stream of {entering.shape[2]} need {(entering.shape[2], values.shape[2])}."
        )
    transformed = values @ weight.to(values.dtype).T
    if layer.attention_scale is not None:
        transformed = transformed * layer.attention_scale.to(values.dtype)
    tiny = torch.finfo(values.dtype).tiny
    return transformed.norm(dim=2) / entering.norm(dim=2).clamp(min=tiny)


def token_step(rows: Rows, layer: Layer) -> Float[Tensor, "b r t"]:
    """`R <- R + (E_h A) diag(m) R`, one row of R at a time; a norm after the projection scales the rows of A."""
    read = rows if layer.output_rows is None else rows * layer.output_rows[:, None].to(rows.dtype)
    pulled = pull_rows(layer, read, attention).mean(dim=1)
    if layer.pooling:  # a pooling query reads the tokens; its transformation is not known
        return pulled
    return carried(rows, layer) + pulled * token_growth(layer)[:, None]


def perceive(layers: list[Layer], rows: Rows, step: Step, *, start: int) -> Float[Tensor, "b r t"]:
    """These rows of R, from the last layer down to the one where R starts."""
    for layer in reversed(layers):
        rows = step(rows, layer) if layer.index >= start else rows
    return rows


def _result(
    runner: Runner, layers: list[Layer], step: Step, *, start: int, steps: int, batch: int, zero_readout: bool
) -> Result:
    """`F * R`, entry by entry, joined over the rows that are read; `own` is the part of the identity in R."""
    last = layers[-1]
    rows = rows_read(last)
    weights = feedback(mean_gradient(runner, last, rows, steps=steps, batch=batch))
    scores = rows.joined(weights * perceive(layers, rows.chosen, step, start=start))
    if zero_readout:
        return without_readout(zero_readout)(scores, last)
    return Result(scores, own=None if last.pooled else rows.joined(weights * rows.chosen))


def build_head(
    *, start_layer: int | None = None, steps: int = 20, batch: int = 1, zero_readout: bool = False
) -> RerunMethod:
    """Attention with heads weighed by importance, through the layers, times the integrated gradient of the last map.

    Args:
        start_layer: the first layer that takes part, counted from zero, or from the end if negative; by default 3 for
            images and the last for text, or 0 in models with fewer blocks.
        steps: points of the path from zero to the input, both ends included.
        batch: how many points run at once.
        zero_readout: set the readout's own entry to zero.
    """
    check_counts(steps=steps, batch=batch)

    def explain(runner: Runner) -> Result:
        depth = runner.run.depth
        start = first_layer(start_layer, START_HEAD, kind=runner.inputs.kind, depth=depth)
        layers = runner.layers(LAST, last_only=start == depth - 1)
        return _result(runner, layers, head_step, start=start, steps=steps, batch=batch, zero_readout=zero_readout)

    return RerunMethod(explain, needs=LAST, check=check_path(start_layer))


def build_token(
    *, start_layer: int | None = None, steps: int = 20, batch: int = 1, zero_readout: bool = False
) -> RerunMethod:
    """Attention weighed by how tokens grow, through the layers, times the integrated gradient of the last map.

    Args:
        start_layer: the first layer that takes part, counted from zero, or from the end if negative; by default 5 for
            images and the last four for text, or 0 in models with fewer blocks.
        steps: points of the path from zero to the input, both ends included.
        batch: how many points run at once.
        zero_readout: set the readout's own entry to zero.
    """
    check_counts(steps=steps, batch=batch)
    needs = LAST | {"entering", "output_weight"}

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if not body.blocks or any(block.output is None for block in body.blocks):
            raise AnatomyError(
                f"bi_token reads the output projection of every block of {type(model).__name__}, which is not known. "
                "Name the parts: vitrail.Anatomy(blocks=..., output=...)."
            )
        check_path(start_layer)(model, body, inputs)

    def explain(runner: Runner) -> Result:
        start = first_layer(start_layer, START_TOKEN, kind=runner.inputs.kind, depth=runner.run.depth)
        layers = runner.layers(needs, last_only=True)
        return _result(runner, layers, token_step, start=start, steps=steps, batch=batch, zero_readout=zero_readout)

    return RerunMethod(explain, needs=needs, check=check)
