"""GIM: gradient interaction modifications, for models that repair themselves.

Edin, Csordas, Ruotsalo, Wu, Maistro, Huang and Maaloe, "GIM: Improved Interpretability for Large Language Models",
2025, arXiv:2505.17630. Where one attention score falls, the softmax gives its weight to others, so the gradient of each
is small. Paper -> code: the temperature of the softmax in the backward pass -> `temperature`, x' -> `baseline`.
The forward pass is the model's own. In the backward pass

* the softmax of attention is differentiated at a higher temperature: `S = softmax(z / T)`, `dz = S (g - <g, S>)`;
* a product of two activations halves their gradients: q and k receive 1/4, v receives 1/2, the branches of a gate 1/2;
* the deviation of a norm is a constant, activations are differentiated as they are.
"""

from dataclasses import replace
from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.capture.recording.layer import widen
from vitrail.capture.seams.intercept import on_top_of
from vitrail.capture.torch_private import without_functions
from vitrail.errors import OptionError
from vitrail.methods.attn_lrp import evenly
from vitrail.methods.conservative_lrp import CONSERVATIVE, router_constant
from vitrail.methods.libra_grad import layer_norm
from vitrail.methods.options import check_choice, check_rules, under_rules
from vitrail.relevance import Result
from vitrail.relevance.lrp import Operation, Rule, RuleSet
from vitrail.relevance.lrp.operation import gradient
from vitrail.relevance.runner import RerunMethod, Runner

LEVEL = "embedding_output"


def softmax_gradient(
    arriving: Float[Tensor, "*rest"], z: Float[Tensor, "*rest"], dim: int, temperature: float
) -> Float[Tensor, "*rest"]:
    """`S (g - <g, S>)` with `S = softmax(z / T)`, without a further factor."""
    probs = (widen(z) / temperature).softmax(dim=dim)
    arriving = widen(arriving)
    return probs * (arriving - (arriving * probs).sum(dim=dim, keepdim=True))


def softmax(temperature: float) -> Rule:
    """A softmax whose gradient is taken at another temperature."""

    def rule(operation: Operation) -> Tensor:
        (z,) = operation.active
        dim = operation.kwargs.get("dim", operation.args[1] if len(operation.args) > 1 else -1)
        return operation.overridden(lambda g, z: (softmax_gradient(g, z, dim, temperature).to(z.dtype),), z)

    return rule


OPTIONS = ("attn_mask", "dropout_p", "is_causal", "scale")
"""The arguments of fused attention after query, key and value."""


def attention(temperature: float) -> Rule:
    """Fused attention: the values by the model's own call, queries and keys by one at the other temperature.

    That call divides `z` by T, and so the gradient of q and k too, which is multiplied by T here. No map is computed.
    """

    def rule(operation: Operation) -> Tensor:
        query, key, value, *more = operation.args
        given = dict(zip(OPTIONS, more, strict=False)) | operation.kwargs
        mask, scale = given.get("attn_mask"), given.get("scale")
        fixed = {**given, "attn_mask": mask if mask is None else operation.constant(mask)}
        warm = {**given, "scale": (query.shape[-1] ** -0.5 if scale is None else scale) / temperature}
        if mask is not None and mask.is_floating_point():
            warm["attn_mask"] = operation.shared(mask, temperature / 2) / temperature
        with without_functions():  # this call is none of the model's
            q, k = (operation.shared(x, temperature / 4, operand=True) for x in (query, key))
            moved = operation.function(q, k, operation.constant(value), **warm)
        q, k = (operation.constant(x) for x in (query, key))
        own = operation.function(q, k, operation.shared(value, 0.5, operand=True), **fixed)
        return own + on_top_of(moved, torch.zeros_like(moved))

    return rule


def gate(operation: Operation) -> Tensor:
    """An entrywise product: of two branches; an activation written out keeps its gradient."""
    return evenly(operation) if operation.source is None else operation.run()


def rules(temperature: float) -> RuleSet:
    """The rules of GIM."""
    return replace(
        CONSERVATIVE,
        name="GIM",
        rules={
            **CONSERVATIVE.rules,
            "layer_norm": layer_norm,
            "attention": attention(temperature),
            "softmax": softmax(temperature),
            "product": evenly,
            "einsum": evenly,
            "gate": router_constant(gate),
            "activation": gradient,
        },
    )


def zero(x: Float[Tensor, "b t d"], real: Float[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
    """Nothing."""
    return torch.zeros_like(x)


def mean(x: Float[Tensor, "b t d"], real: Float[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
    """The mean of a sample's own real tokens."""
    weights = real / real.sum(dim=1, keepdim=True).clamp(min=1)
    return (weights[..., None] * x).sum(dim=1, keepdim=True).expand_as(x)


BASELINES = {"zero": zero, "mean": mean}


def build(*, temperature: float = 2.0, baseline: str = "zero") -> RerunMethod:
    """The modified gradient where the first block begins, times what enters it.

    Args:
        temperature: of every softmax in the backward pass; 1 differentiates it as it is.
        baseline: what is taken off what enters the first block: `zero`, or the `mean` of the sample's tokens.
    """
    start = check_choice("baseline", baseline, BASELINES)
    if not (isfinite(temperature) and temperature > 0):
        raise OptionError(f"temperature={temperature!r}, but it is a number above zero.")

    def explain(runner: Runner) -> Result:
        first = 0 if runner.body.blocks[0].batch_first else 1
        x, arriving = (one.movedim(first, 0) for one in runner.nonzero_gradient())
        real = runner.run.valid.to(x.dtype)
        return Result(((x - start(x, real)) * arriving).sum(dim=2))

    pass_options = under_rules(rules(float(temperature)), LEVEL, "model")
    return RerunMethod(explain, pass_options, check=check_rules("gim", LEVEL))
