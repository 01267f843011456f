"""Transformer Attribution: relevance of attention maps times their gradients, multiplied through the layers.

Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", CVPR 2021, arXiv:2012.09838.
Paper -> code: R^(n_b) -> relevance, grad A -> gradient, the readout's row of C -> row.

The rules of Eqs. 3 to 10 are those of the deep Taylor decomposition (Montavon et al., Pattern Recognition 2017,
arXiv:1512.02479) in two forms. `conserving` passes on as much relevance as it receives. `orig`, the form of the paper's
baselines, lets positive and negative inputs each share the whole relevance of a neuron, which doubles it where both
occur. Operands and relevance are in the precision of the pass. What a rule computes with them is in float32 at least,
but for the factors of matrix products, which are in the precision of the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from vitrail.capture.outputs import Scalar
from vitrail.capture.recording.layer import Layer, Probs, widen
from vitrail.capture.recording.pass_options import PassOptions
from vitrail.capture.recording.passes import Pass
from vitrail.capture.seams.call import AttentionCall, read_sdpa
from vitrail.capture.seams.intercept import softmax
from vitrail.errors import OptionError
from vitrail.methods.options import PRECISIONS, check_choice, check_rules, under_rules
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import Result
from vitrail.relevance.dense import wide_product
from vitrail.relevance.lrp.mode import RuleSet
from vitrail.relevance.lrp.operation import (
    Operation,
    Pullback,
    Rule,
    convolution_parts,
    gradient,
    linear_parts,
    overridden,
)
from vitrail.relevance.runner import RerunMethod, Runner

TINY = 1e-9
ROW_BUDGET = 2**26
"""Entries of a map in a block of rows: 512 MB in float64, half of it in float32."""
LinearRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
SumRule = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


def divide(a: Tensor, b: Tensor) -> Tensor:
    """`a / (b + 1e-9)`, and zero where b is exactly zero. Not aware of b's sign, as published."""
    return (a / (b + TINY)).masked_fill(b == 0, 0.0)


def wide(pullback: Pullback) -> Pullback:
    """The same rule in float32 at least, whatever its operands are in."""

    def widened(relevance: Tensor, *operands: Tensor) -> tuple[Tensor | None, ...]:
        found = pullback(widen(relevance), *map(widen, operands))
        return tuple(None if r is None else r.to(x.dtype) for r, x in zip(found, operands, strict=True))

    return widened


def conserving_linear(relevance: Tensor, x: Tensor, weight: Tensor, product: Tensor) -> Tensor:
    """Eq. 3: shares by positive products. `[xw]^+ = (xw + |x||w|) / 2`, so three matrix products instead of four."""
    size, width = x.abs(), weight.abs()
    share = divide(widen(relevance), (product + wide_product(size, width.T)) / 2)
    return (x * wide_product(share, weight) + size * wide_product(share, width)) / 2


def orig_linear(relevance: Tensor, x: Tensor, weight: Tensor, product: Tensor) -> Tensor:
    """The baselines' form: products of positive and of negative inputs each share the whole relevance."""

    def share(x: Tensor, weight: Tensor) -> Tensor:
        return x * wide_product(divide(widen(relevance), wide_product(x, weight.T)), weight)

    return share(x.clamp(min=0), weight.clamp(min=0)) + share(x.clamp(max=0), weight.clamp(max=0))


def box(relevance: Tensor, x: Tensor, weight: Tensor, shape: dict) -> Tensor:
    """The z-B rule: pixels lie between the lowest and the highest value of their own picture."""
    low = x.amin(dim=(1, 2, 3), keepdim=True).expand_as(x)
    high = x.amax(dim=(1, 2, 3), keepdim=True).expand_as(x)
    terms = ((x, weight, 1.0), (low, weight.clamp(min=0), -1.0), (high, weight.clamp(max=0), -1.0))
    total = sum(sign * F.conv2d(inputs, weights, **shape) for inputs, weights, sign in terms) + TINY
    share = relevance / total
    found = torch.zeros_like(x)
    for inputs, weights, sign in terms:
        found += sign * inputs * conv2d_input(x.shape, weights, share, **shape)
    return found


def proportional(relevance: Tensor, a: Tensor, b: Tensor, batch_axis: int) -> tuple[Tensor, Tensor]:
    """Eq. 8: each summand gets its share of the sum."""
    share = divide(relevance, a + b)
    return a * share, b * share


def normalised(relevance: Tensor, a: Tensor, b: Tensor, batch_axis: int) -> tuple[Tensor, Tensor]:
    """Eqs. 9 and 10: shares rescaled so that a sample's two sums, taken by size, add up to what came in."""
    axes = [axis for axis in range(relevance.ndim) if axis != batch_axis]
    shares = proportional(relevance, a, b, batch_axis)
    sums = [share.sum(dim=axes, keepdim=True) for share in shares]
    whole = relevance.sum(dim=axes, keepdim=True)
    sizes = sums[0].abs() + sums[1].abs()
    pairs = zip(shares, sums, strict=True)
    first, second = (share * divide(divide(own.abs(), sizes) * whole, own) for share, own in pairs)
    return first, second


def attend_values(share: Tensor, probs: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 6 for the product of attention and values: the relevance of the map and of the values, half each.

    Args:
        share: the relevance of the product divided by the product.
    """
    return probs * (share @ value.mT) / 2, value * (probs.mT @ share) / 2


def attend_keys(relevance: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 6 for the product of queries and keys, whose scaling takes no part: half each."""
    share = divide(relevance, query @ key.mT)
    return query * (share @ key) / 2, key * (share.mT @ query) / 2


def fork(x: Tensor) -> Tensor:
    """Apply the rule of a tensor read twice, `x * sum_k R_k / (x + 1e-9)`: the sum, but for entries near zero."""
    return overridden(x, wide(lambda relevance, x: (x * divide(relevance, x),)), x)


def identity(operation: Operation) -> Tensor:
    """Norms, activations, scalings and the softmax pass relevance on as it is."""
    (x,) = operation.active[:1]
    return operation.overridden(lambda relevance, x: (relevance.sum_to_size(x.shape),), x)


def softmax_rule(form: SumRule) -> Rule:
    """The softmax passes relevance on and reports it: it is the relevance of the attention map."""

    def rule(operation: Operation) -> Tensor:
        def pullback(relevance: Tensor, scores: Tensor) -> tuple[Tensor]:
            operation.on_map(relevance, slice(0, relevance.shape[-2]))
            return (unmasked(form, relevance, scores) if operation.masks else relevance,)

        return operation.overridden(wide(pullback), operation.active[0])

    return rule


def unmasked(form: SumRule, relevance: Tensor, scores: Tensor) -> Tensor:
    """Return the relevance of scores in a sum with a mask. The mask is zero at seen keys, and R is zero elsewhere."""
    seen = scores.clamp(min=torch.finfo(scores.dtype).min)
    return form(relevance, seen, torch.zeros_like(seen), 0)[0]


def in_proportion(share: float) -> Rule:
    """Eq. 6 for any operation that is linear in each of its operands: `x * J^T (R / z)`, shared among them."""

    def rule(operation: Operation) -> Tensor:
        entering = {id(x): operation.stand_in(x, wide(lambda r, x: (share * x * r,))) for x in operation.active}
        out = operation.again(entering)
        return overridden(out, wide(lambda relevance, out: (divide(relevance, out),)), out)

    return rule


def select(operation: Operation) -> Tensor:
    """Picking a token: relevance goes where it came from, by the same quotient as at a fork."""
    return fork(operation.run())


def halves(operation: Operation) -> Tensor:
    """A product of two activations, entry by entry: Eq. 6 gives each of them half."""
    a, b = operation.active[:2]
    return operation.overridden(
        lambda relevance, a, b: (relevance.sum_to_size(a.shape) / 2, relevance.sum_to_size(b.shape) / 2), a, b
    )


def linear(form: LinearRule) -> Rule:
    """The rule of a linear layer, however it is written; its bias takes no part."""

    def rule(operation: Operation) -> Tensor:
        x, weight, bias = linear_parts(operation)
        value = operation.value()

        def pullback(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
            product = widen(value) if bias is None else widen(value) - bias
            found = form(relevance, x, weight, product)
            if operation.readers() > 1:  # queries, keys and values read one tensor: it forks once more than the stream
                found = widen(x) * divide(found, widen(x))
            return (found.to(x.dtype),)

        return overridden(value, pullback, x)

    return rule


def convolution(operation: Operation) -> Tensor:
    """The patch embedding reads the picture."""
    x, weight, shape = convolution_parts(operation)
    return operation.overridden(wide(lambda relevance, x: (box(relevance, x, weight.to(x.dtype), shape),)), x)


def residual(form: SumRule) -> Rule:
    """The sum of a skip connection and the sub-layer around which it leads."""

    def rule(operation: Operation) -> Tensor:
        axis = operation.batch_axis
        return operation.overridden(wide(lambda relevance, a, b: form(relevance, a, b, axis)), *operation.active[:2])

    return rule


def shift(form: SumRule) -> Rule:
    """A sum with something that is not explained: positions, whose share is dropped; masks and biases have none."""

    def rule(operation: Operation) -> Tensor:
        if not operation.before:
            return identity(operation)
        (x,) = operation.active
        out = operation.value()
        other = out - x.detach()

        def pullback(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
            spread = x.expand_as(relevance)
            return (form(relevance, spread, other, operation.batch_axis)[0].sum_to_size(x.shape),)

        return overridden(out, wide(pullback), x)

    return rule


@dataclass(frozen=True)
class _Rows:
    """Fused attention whose map is computed again, a block of rows at a time, when relevance arrives."""

    call: AttentionCall
    share: Tensor
    key: Tensor
    value: Tensor

    def cuts(self) -> list[slice]:
        """Blocks of rows of which each has at most `ROW_BUDGET` entries."""
        rows, entries = self.share.shape[-2], self.share[..., 0].numel() * self.key.shape[-2]
        size = max(1, ROW_BUDGET * rows // max(entries, 1))
        return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

    def relevance(self, cut: slice) -> tuple[Tensor, Tensor]:
        """The relevance of some rows of the map, and what the values get of it."""
        assert self.call.query is not None
        mask = self.call.mask
        mask = mask[..., cut, :] if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1 else mask
        call = replace(self.call, query=self.call.query[..., cut, :], mask=mask)
        return attend_values(self.share[..., cut, :], softmax(call, self.key, first_row=cut.start), self.value)


def _unmasked_rows(form: SumRule, rows: _Rows, query: Tensor, scale: float) -> Callable[[slice, Tensor], Tensor]:
    """`unmasked` for blocks of rows; what a rule for sums needs of the whole map is summed first."""

    def scores(cut: slice) -> Tensor:
        return (query[..., cut, :] @ rows.key.mT) * scale

    if form is not normalised or len(rows.cuts()) == 1:
        return lambda cut, at_map: unmasked(form, at_map, scores(cut))
    own, whole = 0.0, 0.0
    for cut in rows.cuts():
        at_map, _ = rows.relevance(cut)
        axes = list(range(1, at_map.ndim))
        own = own + unmasked(proportional, at_map, scores(cut)).sum(dim=axes, keepdim=True)
        whole = whole + at_map.sum(dim=axes, keepdim=True)
    assert isinstance(own, Tensor)
    assert isinstance(whole, Tensor)
    factor = divide(divide(own.abs(), own.abs()) * whole, own)  # Eqs. 9 and 10, the mask's own share being zero
    return lambda cut, at_map: unmasked(proportional, at_map, scores(cut)) * factor


def attention(form: SumRule) -> Rule:
    """Fused attention, its map computed again when relevance arrives. The softmax passes relevance on."""

    def rule(operation: Operation) -> Tensor:
        out = operation.run().detach()  # whoever captures attention wants its graph
        call = read_sdpa(out, *operation.args, **operation.kwargs)
        assert call.query is not None
        assert call.key is not None
        assert call.value is not None

        def pullback(relevance: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            groups = query.shape[-3] // key.shape[-3]
            keys, values = (x.repeat_interleave(groups, dim=-3) for x in (key, value))
            rows = _Rows(replace(call, query=query), divide(relevance, widen(out)), keys, values)
            change = _unmasked_rows(form, rows, query, call.scale) if operation.masks else lambda cut, at_map: at_map
            at_query, at_keys, at_values = [], torch.zeros_like(keys), torch.zeros_like(values)
            for cut in rows.cuts():
                at_map, some_values = rows.relevance(cut)
                operation.on_map(at_map, cut)
                some_query, some_keys = attend_keys(change(cut, at_map), query[..., cut, :], keys)
                at_query.append(some_query)
                at_keys, at_values = at_keys + some_keys, at_values + some_values
            at_key, at_value = (x.unflatten(-3, (-1, groups)).sum(dim=-3) for x in (at_keys, at_values))
            return torch.cat(at_query, dim=-2), at_key, at_value

        return overridden(out, wide(pullback), call.query, call.key, call.value)

    return rule


_SHARED: dict[str, Rule] = {
    "route": gradient,
    "convolution": convolution,
    "product": in_proportion(0.5),
    "sum": in_proportion(1.0),
    "mean": in_proportion(1.0),
    "select": select,
    "gate": halves,
    **dict.fromkeys(("layer_norm", "rms_norm", "rms_norm_module", "activation", "dropout", "scale"), identity),
}


def _rules(name: str, linear_form: LinearRule, sum_form: SumRule) -> RuleSet:
    """The rule set with these forms for linear layers and for sums."""
    rules: dict[str, Rule] = dict.fromkeys(("linear", "addmm", "linear_product"), linear(linear_form))
    for kind, rule in {"attention": attention, "softmax": softmax_rule, "residual": residual, "shift": shift}.items():
        rules[kind] = rule(sum_form)
    return RuleSet(name, {**_SHARED, **rules}, fork=fork)


CONSERVING = _rules("conserving", conserving_linear, normalised)
ORIG = _rules("orig", orig_linear, proportional)


def map_relevance(run: Pass, part: Scalar, see: Callable[[int, Tensor, slice], None], *, lowest: int = 0) -> None:
    """Propagate the target's relevance down to a layer, and show every attention map's on the way, last to first.

    Args:
        run: a pass that was made inside `propagating`.
        see: takes the index of a layer, the relevance of a block of rows of its map `[b, h, q, k]`, and which rows
            these are. Blocks come in order.
    """
    capture = run.capture
    entering = capture.layers[lowest].states.get("entering")
    ends = capture.roots if lowest == 0 or entering is None else [entering]

    def on_map(block: int | None, relevance: Tensor, rows: slice) -> None:
        if block is None and capture.body.pool is None:
            return  # a softmax over classes, not over keys
        index = run.depth - 1 if block is None else block  # outside of the blocks, only a pooling query attends
        batch = run.inputs.batch
        see(index, relevance if relevance.ndim == 4 else relevance.view(batch, -1, *relevance.shape[1:]), rows)

    capture.on_map = on_map
    torch.autograd.grad(part.scalar.sum(), ends, retain_graph=True, allow_unused=True)


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
        map_relevance(runner.run, runner.part, lambda i, *seen: product.see(layers[i], *seen), lowest=lowest)
        return Result(finish(product.close(), layers[0]))

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        check_rules("transformer_attribution", LEVEL)(model, body, inputs)
        depth = len(body.blocks) + (body.pool is not None)
        if not -depth <= start_layer < depth:
            raise OptionError(f"start_layer={start_layer}, but the model's layers are 0 to {depth - 1}.")

    return RerunMethod(explain, under_rules(CONSERVING, LEVEL, precision, wide_range=True), check=check)
