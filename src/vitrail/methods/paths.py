"""Gradients along the straight path from zero to the input, for integrated gradients, BI and TAM.

Several points of the path can run at once: the batch is then repeated, one copy for each point. BI and TAM average the
gradient of the last attention map along the path and multiply it, entry by entry, with a map made from attention alone.
The product is taken in each row before rows are averaged. So a model that reads the mean of its tokens needs every row,
and one that reads a single token needs only that row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.capture.recording.layer import Layer
from vitrail.capture.recording.pass_options import PLAIN, PassOptions
from vitrail.errors import AnatomyError, OptionError
from vitrail.methods.options import Check, check_count, show_progress
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import gradient, tiles
from vitrail.relevance.dense import Weigh
from vitrail.relevance.runner import Runner

LAST = frozenset({"output_grad"})


def check_counts(*, steps: int, batch: int) -> None:
    """Raise unless there are points on the path and some of them run at a time."""
    if steps < 1 or batch < 1:
        raise OptionError(f"steps={steps} and batch={batch}, but both must be at least 1.")
    check_count("steps", steps)
    check_count("batch", batch)


def with_both_ends(steps: int) -> list[float]:
    """Evenly spaced points from 0 to 1, both included; one point alone is 0."""
    return torch.linspace(0, 1, steps, dtype=torch.float64).tolist()


def midpoints(steps: int) -> list[float]:
    """The middles of equal parts of the way from 0 to 1."""
    return [(step + 0.5) / steps for step in range(steps)]


def path_sum(gradients: Callable[[list[float]], Tensor], points: list[float], *, batch: int) -> Tensor:
    """The sum over all points, some of them at a time.

    Args:
        gradients: takes some points and gives the sum over them.
    """
    parts = [points[start : start + batch] for start in range(0, len(points), batch)]
    return reduce(torch.add, (gradients(part) for part in show_progress(parts, f"{len(points)} points of a path")))


def scaled(x: Tensor, points: list[float], *, axis: int = 0) -> Tensor:
    """The copies of a batch, each times its point.

    Args:
        axis: where the samples of all copies are counted.
    """
    factors = x.new_tensor(points).repeat_interleave(x.shape[axis] // len(points))
    return x * factors.view([-1 if i == axis else 1 for i in range(x.ndim)])


def copies_summed(x: Tensor, copies: int, *, axis: int = 0) -> Tensor:
    """One tensor for the batch: the sum over its copies, which stand one after the other."""
    return x.unflatten(axis, (copies, -1)).sum(dim=axis)


def sample_axis(runner: Runner) -> int:
    """Return the axis of the samples in the residual stream: some models keep time first."""
    return 0 if runner.body.blocks[0].batch_first else 1


@dataclass(frozen=True)
class PathRows:
    """Rows of the last map: which queries each is made of, and how much of it the prediction reads."""

    chosen: Float[Tensor, "b r q"]
    weights: Float[Tensor, "b r"]

    def joined(self, maps: Float[Tensor, "b r t"]) -> Float[Tensor, "b t"]:
        """Return the weighted sum that the prediction reads of maps, one for each row."""
        return (self.weights[:, :, None] * maps).sum(dim=1)


def rows_read(last: Layer) -> PathRows:
    """The one row each sample is read from, or every row where a sample is read from several."""
    readout = last.readout
    if bool((readout.amax(dim=1) == 1).all()):
        return PathRows(readout[:, None], torch.ones_like(readout[:, :1]))
    every = torch.eye(readout.shape[1], dtype=readout.dtype, device=readout.device)
    return PathRows(every.expand(readout.shape[0], -1, -1), readout)


def summed(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors that are made one after the other."""
    return reduce(torch.Tensor.add_, parts)


def pull_rows(layer: Layer, rows: Float[Tensor, "b r q"], weigh: Weigh) -> Float[Tensor, "b h r k"]:
    """Per head, several rows of the weighed map, each a sum over queries."""
    return summed(rows[:, None, :, cut] @ weigh(tile) for cut, tile in tiles(layer))


def carried(rows: Float[Tensor, "b r q"], layer: Layer) -> Float[Tensor, "b r q"] | float:
    """Return the part that skip connections carry past this layer: all, or nothing if a query pools the tokens."""
    return 0.0 if layer.pooling else rows


def mean_gradient(runner: Runner, last: Layer, rows: PathRows, *, steps: int, batch: int) -> Float[Tensor, "b h r k"]:
    """The mean of `ds/dA^L` at the points 0, ..., 1 of the path, one row for each that is read.

    Args:
        last: the last layer of the clean pass, with its gradient, which is that of the point 1.
    """

    def some(points: list[float]) -> Tensor:
        copies = len(points)
        inputs, pass_options = runner.repeated(copies), PLAIN
        if inputs.kind == "image":
            inputs = inputs.showing(scaled(inputs.shown, points))
        else:
            pass_options = PassOptions(edit=lambda stream: scaled(stream, points, axis=sample_axis(runner)))
        layer = runner.recorded(LAST, pass_options, inputs=inputs, copies=copies, last_only=True)[-1]
        return copies_summed(pull_rows(layer, rows.chosen.repeat(copies, 1, 1), gradient), copies)

    points = with_both_ends(steps)
    found = path_sum(some, [point for point in points if point != 1], batch=batch)
    if 1 in points:
        found = found + pull_rows(last, rows.chosen, gradient)
    return found / steps


def feedback(mean: Float[Tensor, "b h r k"]) -> Float[Tensor, "b r k"]:
    """`E_h [mean_a G^L]^+`: averaged over the path first, then the positive part in each head, then the heads' mean."""
    return mean.clamp(min=0).mean(dim=1)


def first_layer(given: int | None, published: Mapping[str, int], *, kind: str, depth: int) -> int:
    """The layer a method starts from, counted from zero.

    Args:
        given: what the user asked for, counted from the end if negative; None for what was published.
        published: by kind of input. A model too shallow for it starts from its first layer.
    """
    if given is None:
        start = published[kind] + (depth if published[kind] < 0 else 0)
        return start if 0 <= start < depth else 0
    if not -depth <= given < depth:
        raise OptionError(
            f"start_layer={given}, but the model's layers are 0 to {depth - 1} (or -{depth} to -1, counted from the "
            "end). Leave it out for the published one."
        )
    return given % depth


def check_path(start_layer: int | None) -> Check:
    """A check that the embeddings of texts can be scaled, and that the model has the layer a method starts from."""

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if inputs.kind == "text" and not body.blocks:
            raise AnatomyError(
                f"the embeddings that enter the first block of {type(model).__name__} have to be scaled, but its "
                "blocks are not known. Name them: vitrail.Anatomy(blocks=...)."
            )
        if start_layer is not None and body.blocks:
            first_layer(start_layer, {}, kind="", depth=len(body.blocks) + (body.pool is not None))

    return check
