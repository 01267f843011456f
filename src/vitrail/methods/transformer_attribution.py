"""Transformer Attribution: relevance of attention maps times their gradients, multiplied through the layers.

Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", CVPR 2021, arXiv:2012.09838.
Paper -> code: R^(n_b) -> relevance, grad A -> gradient, the readout's row of C -> row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.capture.pass_options import PassOptions
from vitrail.capture.recording import Layer, Probs
from vitrail.errors import OptionError
from vitrail.methods.options import PRECISIONS, check_choice, check_rules
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result
from vitrail.relevance.lrp import propagating
from vitrail.relevance.lrp.deep_taylor import CONSERVING, tell_maps
from vitrail.relevance.runner import RerunMethod, Runner

Row = Float[Tensor, "b t"]
LEVEL = "embedding_output"


def weigh(gradient: Probs, relevance: Probs) -> Float[Tensor, "b q k"]:
    """Eq. 13 without the identity: the positive part of gradient times relevance, mean over heads."""
    return (gradient * relevance).clamp(min=0).mean(dim=1)


def pull(
    row: Float[Tensor, "b q"], mixing: Float[Tensor, "b q k"], *, normalise: bool, carried: bool
) -> tuple[Float[Tensor, "b q"], Row]:
    """Eq. 14, read from the readout's row: what `r (I + A)` keeps and takes of these rows.

    The rows of `I + A` are divided by their sums if asked for.
    """
    row = row / (mixing.sum(dim=2) + carried) if normalise else row
    return row if carried else torch.zeros_like(row), (row[:, None] @ mixing).squeeze(1)


@dataclass
class Multiplied:
    """The readout's row of the product of all layers' matrices, whose rows come in blocks, last layer first."""

    row: Float[Tensor, "b q"]
    normalise: bool
    index: int | None = None
    kept: list[Float[Tensor, "b q"]] = field(default_factory=list)
    seen: list[Row] = field(default_factory=list)

    def see(self, layer: Layer, relevance: Probs, rows: slice) -> None:
        """Take some rows of a layer."""
        if layer.index != self.index:
            self.close()
            self.index = layer.index
        gradient = layer.rows(rows.start, rows.stop).probs_grad
        mixing = weigh(gradient, relevance)
        kept, seen = pull(self.row[:, rows], mixing, normalise=self.normalise, carried=not layer.pooling)
        self.kept.append(kept)
        self.seen.append(seen)

    def close(self) -> Row:
        """The row after all layers that have been seen."""
        if self.seen:
            seen, kept = torch.stack(self.seen).sum(dim=0), torch.cat(self.kept, dim=1)
            self.row = seen + kept if kept.shape == seen.shape else seen  # a pooling query carries nothing
            self.kept, self.seen = [], []
        return self.row


def least_at_readout(row: Row, first: Layer) -> Row:
    """The readout's own entry replaced by the smallest of the real tokens' entries."""
    least = row.masked_fill(~first.valid, torch.inf).amin(dim=1, keepdim=True)
    return torch.where(first.readout == 1, least, row)


OWN: dict[str, Callable[[Row, Layer], Row]] = {
    "keep": lambda row, first: row,
    "minimum": least_at_readout,
    "zero": lambda row, first: row.masked_fill(first.readout == 1, 0.0),
}


def build(*, start_layer: int = 0, normalise: bool = False, own: str = "keep", precision: str = "model") -> RerunMethod:
    """Gradient times relevance of every attention map, positive part, multiplied through the layers.

    Args:
        start_layer: the first layer that takes part, counted from zero; -1 is the last.
        normalise: divide the rows of every layer's matrix by their sums.
        own: `keep` the readout's own entry, or replace it by the row's `minimum` or by `zero`.
        precision: `model` runs the model as it is, and the rules in float32 at least; `float64` and `float32` run a
            copy of its weights.
    """
    dtype = check_choice("precision", precision, PRECISIONS)
    finish = check_choice("own", own, OWN)

    def explain(runner: Runner) -> Result:
        layers = runner.recorded(frozenset({"output_grad"}), PassOptions(dtype=dtype, wide_range=True))
        lowest = start_layer % len(layers)
        product = Multiplied(layers[-1].readout, normalise)
        see = lambda index, relevance, rows: product.see(layers[index], relevance, rows)  # noqa: E731
        tell_maps(runner.run, runner.part, see, lowest=lowest)
        return Result(finish(product.close(), layers[0]))

    rules = check_rules("transformer_attribution", LEVEL)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        rules(model, body, inputs)
        depth = len(body.blocks) + (body.pool is not None)
        if not -depth <= start_layer < depth:
            raise OptionError(f"start_layer={start_layer}, but the model's layers are 0 to {depth - 1}.")

    rules_of = partial(propagating, CONSERVING)
    pass_options = PassOptions(level=LEVEL, dtype=dtype, wide_range=True, within=rules_of)
    return RerunMethod(explain, pass_options, check=check)
