"""Relative absolute magnitude propagation (absLRP), contrasted with all other classes.

Vukadin et al., "Advancing Attribution-Based Neural Network Explainability through Relative Absolute Magnitude
Layer-Wise Relevance Propagation and Multi-Component Evaluation", 2024, arXiv:2412.09311.
Every operation z = f(x) pulls `R / |z|` back through z + z_abs, where z_abs = |f|(|x|) has absolute weights; times x;
divided by its absolute sum. Norm statistics and the softmax's denominator are constants. As in the released code,
dropout is an operation like any other, and the share of a skip connection comes from the total derivative, which
includes the path through the parallel sub-layer.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.grad import conv2d_input

from vitrail.capture.seams.call import read_sdpa
from vitrail.capture.seams.intercept import softmax
from vitrail.errors import RuleError, TargetError
from vitrail.methods.conservative_lrp import CONSERVATIVE_MEAN
from vitrail.methods.options import at_level, check_rules, under_rules
from vitrail.relevance import Result
from vitrail.relevance.lrp.mode import RuleSet
from vitrail.relevance.lrp.operation import (
    Operation,
    Rule,
    convolution_parts,
    gradient,
    linear_parts,
    norm_parts,
    overridden,
)
from vitrail.relevance.runner import RerunMethod, Runner

TINY = 1e-9


def unit(relevance: Tensor, batch_axis: int = 0) -> Tensor:
    """Each sample's relevance divided by its absolute sum."""
    axes = [axis for axis in range(relevance.ndim) if axis != batch_axis]
    return relevance / (relevance.abs().sum(dim=axes, keepdim=True) + TINY)


def cotangent(relevance: Tensor, out: Tensor) -> Tensor:
    """`R / |z|`, what every operation pulls back."""
    return relevance / (out.abs() + TINY)


def entrywise(x: Tensor, slope: Tensor | float, absolute_slope: Tensor | float) -> Tensor:
    """An operation on single entries: `x (f'(x) + sign(x) |f|'(|x|))`, by which its cotangent is multiplied."""
    return x * slope + x.abs() * absolute_slope


def linear_form(c: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """A linear layer: `x (c W) + |x| (c |W|)`, twice the positive products."""
    return x * (c @ weight) + x.abs() * (c @ weight.abs())


def product_form(c: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix product of two activations, one rule for each factor."""
    return (
        a * (c @ b.mT) + a.abs() * (c @ b.abs().mT),
        b * (a.mT @ c) + b.abs() * (a.abs().mT @ c),
    )


def norm_form(x: Tensor, weight: Tensor | None, eps: float, axes: list[int]) -> Tensor:
    """A layer norm with constant statistics, those of z_abs taken of |x|."""
    gain = torch.ones_like(x[..., :1]) if weight is None else weight
    slope, absolute = (gain * (y.var(dim=axes, correction=0, keepdim=True) + eps).rsqrt() for y in (x, x.abs()))
    return entrywise(x, slope, absolute.abs())


def absolute(form: Callable[..., tuple[Tensor, ...]]) -> Rule:
    """A rule from a form that takes the cotangent and the operands, and gives one share for each."""

    def rule(operation: Operation) -> Tensor:
        out = operation.run()

        def pullback(relevance: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
            shares = form(operation, cotangent(relevance, out.detach()), *operands)
            return tuple(unit(share, operation.batch_axis) for share in shares)

        return overridden(out, pullback, *operation.active)

    return rule


def _convolution(operation: Operation, c: Tensor, x: Tensor) -> tuple[Tensor]:
    _, weight, shape = convolution_parts(operation)
    pulled, pulled_absolute = (conv2d_input(x.shape, w, c, **shape) for w in (weight, weight.abs()))
    return (x * pulled + x.abs() * pulled_absolute,)


def single(factor: Callable[[Operation, Tensor], Tensor]) -> Rule:
    """A rule for an operation on single entries; what relevance is multiplied by is computed once, when it arrives."""

    def rule(operation: Operation) -> Tensor:
        out = operation.run()
        known: list[Tensor] = []

        def pullback(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
            if not known:
                known.append(factor(operation, x) / (out.detach().abs() + TINY))
            return (unit((relevance * known[0]).sum_to_size(x.shape), operation.batch_axis),)

        return overridden(out, pullback, operation.active[0])

    return rule


def _softmax(operation: Operation, scores: Tensor) -> Tensor:
    seen = scores > torch.finfo(scores.dtype).min / 2
    probs, of_sizes = (x.masked_fill(~seen, -torch.inf).softmax(dim=-1) for x in (scores, scores.abs()))
    return entrywise(scores.masked_fill(~seen, 0.0), probs, of_sizes)


def slope(operation: Operation, x: Tensor) -> Tensor:
    """The derivative of an elementwise function."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        out = operation.again({id(operation.active[0]): x})
        return torch.autograd.grad(out.sum(), x)[0]


as_it_is = single(lambda operation, x: entrywise(x, 1.0, 1.0))
"""Dropout, and sums with something that is not explained: `x (1 + sign x)`."""


def _gate(operation: Operation, c: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    found = (c * entrywise(a, b, b.abs()), c * entrywise(b, a, a.abs()))
    return found[0].sum_to_size(a.shape), found[1].sum_to_size(b.shape)


def shift(operation: Operation) -> Tensor:
    """Positions take their share, which is dropped; masks and biases take none."""
    if not operation.before:
        return operation.overridden(lambda relevance, x: (relevance.sum_to_size(x.shape),), operation.active[0])
    return as_it_is(operation)


def dropout(operation: Operation) -> Tensor:
    """Dropout as an operation; the one after the positions is left out, as in the released code."""
    return operation.run() if operation.before else as_it_is(operation)


def through(operation: Operation) -> Tensor:
    """A scaling by a number passes relevance on as it is; one by a vector, such as layer scale, is a linear layer."""
    if not any(isinstance(x, Tensor) and x is not operation.active[0] for x in operation.args):
        return operation.overridden(lambda relevance, x: (relevance,), operation.active[0])
    # What becomes of ones is the vector, or one over it where the model divides.
    gain = operation.again({id(operation.active[0]): torch.ones_like(operation.active[0])}).detach()
    return single(lambda _, x: entrywise(x, gain, gain.abs()))(operation)


def linear_map(operation: Operation) -> Tensor:
    """Picking a token, or the mean of tokens: `x (1 + sign x) J^T(R / |z|)`."""
    (x,) = operation.active
    axis = operation.batch_axis
    entering = overridden(x, lambda relevance, x: (unit(relevance * entrywise(x, 1.0, 1.0), axis),), x)
    out = operation.again({id(x): entering})
    return overridden(out, lambda relevance, out: (cotangent(relevance, out),), out)


def attention(operation: Operation) -> Tensor:
    """Fused attention in its four steps: values, dropout, softmax, keys. Each factor's share has absolute sum one."""
    out = operation.run()
    call = read_sdpa(out.detach(), *operation.args, **operation.kwargs)

    def pullback(relevance: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probs, scores = softmax(call, key), (query * call.scale) @ key.mT
        at_map, at_value = product_form(cotangent(relevance, out.detach()), probs, value)
        # The attention's dropout is an operation too, and entries near zero feel its 1e-9.
        inverse = (probs + TINY).reciprocal_()
        at_map = unit(unit(at_map) * entrywise(probs, 1.0, 1.0) * inverse)
        at_scores = unit(at_map * entrywise(scores, probs, softmax(call, key, torch.abs)) * inverse)
        at_query, at_key = product_form(cotangent(at_scores, scores), query * call.scale, key.mT)
        return unit(at_query), unit(at_key.mT), unit(at_value)

    return overridden(out, pullback, *operation.active)


def _same_sum(kept: tuple[Tensor, ...], operation: Operation) -> tuple[Tensor, Tensor]:
    """The summands that the plain pass kept, which have to be those of this sum."""
    if not kept or not all(
        a.shape == b.shape and torch.allclose(a, b) for a, b in zip(kept, operation.active, strict=True)
    ):
        raise RuleError(
            f"the sum in the module {operation.where!r} is a skip connection in one pass and not in another, so the "
            "absolute rules cannot follow it; use lrp or attn_lrp."
        )
    stream, branch = kept
    return stream, branch


def residual(branches: Iterator[tuple[Tensor, Tensor]]) -> Rule:
    """A sub-layer and the stream it reads; `branches` are the same two in a pass that keeps the chain rule."""

    def rule(operation: Operation) -> Tensor:
        out = operation.run()
        plain_stream, plain_branch = _same_sum(next(branches, ()), operation)
        axis = operation.batch_axis

        def pullback(relevance: Tensor, stream: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
            c = cotangent(relevance, out.detach())
            at_branch = branch * (1 + branch.sign()) * c
            (through_branch,) = torch.autograd.grad(
                plain_branch, plain_stream, (1 + branch.sign()) * c, retain_graph=True, allow_unused=True
            )
            if through_branch is None:
                raise RuleError(
                    f"the sum in the module {operation.where!r} adds two tensors of which neither was made from the "
                    "other, as where a skip connection is scaled before it is added. The absolute rules differentiate "
                    "the sub-layer by the stream it reads, so they do not cover it; use lrp or attn_lrp."
                )
            at_stream = stream * ((1 + stream.sign()) * c + through_branch)
            return unit(at_stream, axis), unit(at_branch, axis)

        return overridden(out, pullback, *operation.active)

    return rule


def constant_softmax(operation: Operation) -> Tensor:
    """A softmax whose denominators are constant, by the chain rule."""
    out = operation.run()
    return overridden(out, lambda g, scores: (g * out.detach(),), operation.active[0])


def constant_attention(operation: Operation) -> Tensor:
    """The same inside fused attention."""
    out = operation.run()
    call = read_sdpa(None, *operation.args, **operation.kwargs)

    def pullback(g: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probs = softmax(call, key)
        at_scores = probs * (g @ value.mT) * call.scale
        return at_scores @ key, at_scores.mT @ query, probs.mT @ g

    return overridden(out, pullback, *operation.active)


def kept_residual(operation: Operation) -> Tensor:
    """A residual sum, its stream and its sub-layer kept."""
    operation.note(operation.active)
    return operation.run()


PLAIN = RuleSet(
    "constant statistics",
    {
        **CONSERVATIVE_MEAN.rules,
        "softmax": constant_softmax,
        "attention": constant_attention,
        "residual": kept_residual,
    },
)
"""The chain rule with constant statistics: the pass whose sub-layers `absolute_rules` differentiates."""


def absolute_rules(notes: list[tuple[Tensor, Tensor]]) -> RuleSet:
    """The rule set for one pass.

    Args:
        notes: the stream and the sub-layer of every residual sum, in a pass by `PLAIN`.
    """
    return RuleSet("absolute", {**_ABSOLUTE, "residual": residual(iter(notes))})


_ABSOLUTE: dict[str, Rule] = {
    "route": gradient,
    **dict.fromkeys(
        ("linear", "linear_product"),
        absolute(lambda operation, c, x: (linear_form(c, x, linear_parts(operation)[1]),)),
    ),
    "convolution": absolute(_convolution),
    "layer_norm": single(lambda operation, x: norm_form(x, *norm_parts(operation)[1:])),
    "activation": single(lambda operation, x: entrywise(x, slope(operation, x), slope(operation, x.abs()))),
    "softmax": single(_softmax),
    "product": absolute(lambda operation, c, a, b: product_form(c, a, b)),
    "attention": attention,
    "gate": absolute(_gate),
    "sum": absolute(lambda operation, c, a, b: (c * entrywise(a, 1.0, 1.0), c * entrywise(b, 1.0, 1.0))),
    "shift": shift,
    "scale": through,
    "dropout": dropout,
    "select": linear_map,
    "mean": linear_map,
}


_MIXED = "its relevance is divided by each sample's absolute sum, and there samples share an axis"
REFUSED = {
    "MultiheadAttention": _MIXED,
    "AttentionPoolLatent": "no rule is published for a query that pools the tokens",
    "Conv1D": _MIXED,
    "RMSNorm": "no rule is published for norms without a mean",
}
"""Modules the rules do not cover, by the end of their class's name."""


def seeds(runner: Runner, logits: Float[Tensor, "b c"]) -> tuple[Tensor, Tensor]:
    """Relevance of one for the target's class, and of one shared by all other classes."""
    if runner.part.target.name not in {"logit", "probability"} or logits.ndim != 2:
        raise TargetError(f"abs_lrp contrasts one class with all others; it cannot explain {runner.part.target}.")
    chosen = torch.zeros_like(logits)
    chosen[runner.rows, torch.as_tensor(runner.part.target.first, device=logits.device)] = 1.0
    return chosen, (1 - chosen) / max(logits.shape[1] - 1, 1)


def contrast(wanted: Tensor, others: Tensor) -> Tensor:
    """Relevance of the class minus that of all others, each sample divided by its largest absolute value."""
    found = wanted - others
    largest = found.abs().amax(dim=tuple(range(1, found.ndim)), keepdim=True)
    return found / torch.where(largest == 0, torch.ones_like(largest), largest)


def build(*, level: str = "embedding_output", precision: str = "float64") -> RerunMethod:
    """Relevance by absolute magnitudes, for the class less for all others.

    Args:
        level: how far back: to the picture (`pixels`) or to what the first block reads (`embedding_output`).
        precision: `float64` or `float32`.
    """

    def explain(runner: Runner) -> Result:
        rules = absolute_rules(runner.run.capture.notes)
        with runner.again(pass_options=under_rules(rules, level, precision)) as (run, _):
            wanted, others = (run.pull_back(seed) for seed in seeds(runner, run.output.logits))
        return at_level(level, runner, contrast(wanted, others))

    options = under_rules(PLAIN, level, precision)
    return RerunMethod(explain, options, check=check_rules("abs_lrp", level, refused=REFUSED))
