"""Rules that keep the gradient and hold some factors constant or share them out: conservative LRP and AttnLRP.

Ali et al., "XAI for Transformers: Better Explanations through Conservative Propagation", ICML 2022, arXiv:2202.07304.
Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML 2024,
arXiv:2402.05602. Gradient times input on such a graph is the relevance.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.errors import RuleError
from vitrail.relevance.lrp.mode import RuleSet
from vitrail.relevance.lrp.operation import Operation, Rule, bent, gradient
from vitrail.relevance.lrp.reading import norm_parts

TINY = 1e-10


def norm_gradient(gradient: Tensor, x: Tensor, weight: Tensor | None, eps: float, axes: list[int]) -> Tensor:
    """The gradient of a layer norm whose standard deviation is constant (LN rule of Ali et al.)."""
    scaled = gradient if weight is None else gradient * weight
    scaled = scaled * (x.var(dim=axes, correction=0, keepdim=True) + eps).rsqrt()
    return scaled - scaled.mean(dim=axes, keepdim=True)


def norm_gradient_mean_constant(
    gradient: Tensor, x: Tensor, weight: Tensor | None, eps: float, axes: list[int]
) -> Tensor:
    """The same with a constant mean."""
    scaled = gradient if weight is None else gradient * weight
    return scaled * (x.var(dim=axes, correction=0, keepdim=True) + eps).rsqrt()


def layer_norm(form: Callable[..., Tensor]) -> Rule:
    """A layer norm whose statistics are constants of some kind."""

    def rule(operation: Operation) -> Tensor:
        x, weight, eps, axes = norm_parts(operation)
        return operation.bent(lambda g, x: (form(g, x, weight, eps, axes),), x)

    return rule


def rms_norm(operation: Operation) -> Tensor:
    """A norm without a mean, its scale constant."""
    x, weight, eps, axes = norm_parts(operation)

    def pullback(g: Tensor, x: Tensor) -> tuple[Tensor]:
        scaled = g if weight is None else g * weight
        return (scaled * (x.square().mean(dim=axes, keepdim=True) + eps).rsqrt(),)

    return operation.bent(pullback, x)


class _ConstantScale(TorchFunctionMode):
    """Inside a norm written out by hand, what the input is divided by is a constant."""

    ROOTS = frozenset({torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.norm, Tensor.norm})
    POWERS = frozenset({torch.pow, Tensor.pow, Tensor.__pow__})

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        power = args[1] if func in self.POWERS and len(args) > 1 and isinstance(args[1], (int, float)) else 1
        if func not in self.ROOTS and power not in (0.5, -0.5, -1):
            return out
        self.found += 1
        return out.detach()


def rms_norm_module(operation: Operation) -> Any:  # noqa: ANN401
    """The same for a module that writes the norm out."""
    with _ConstantScale() as scale:
        out = operation.run()
    if not scale.found:
        raise RuleError(f"the norm {operation.where!r} takes no root that could be held constant; no rule covers it.")
    return out


def attention(shares: tuple[float, float, float]) -> Rule:
    """Fused attention whose query, key and value receive these shares of their gradients."""

    def rule(operation: Operation) -> Tensor:
        shared = (scaled(x, share) for x, share in zip(operation.args[:3], shares, strict=True))
        return operation.function(*shared, *operation.args[3:], **operation.kwargs)

    return rule


def scaled(x: Tensor, share: float) -> Tensor:
    """The tensor, its gradient multiplied."""
    return bent(x, lambda g, x: (share * g,), x)


def constant(operation: Operation) -> Tensor:
    """A constant: relevance stops here."""
    return operation.run().detach()


def halves(operation: Operation) -> Tensor:
    """A product of two activations shares relevance evenly between them."""
    factors = (operation.stand_in(x, lambda g, x: (0.5 * g,)) for x in operation.args[:2])
    return operation.function(*factors, *operation.args[2:], **operation.kwargs)


def constant_gate(operation: Operation) -> Tensor:
    """A gated product whose gate, the factor that went through an activation, is a constant."""
    factors = (x.detach() if x is operation.gate else x for x in operation.args[:2])
    return operation.function(*factors, *operation.args[2:], **operation.kwargs)


def identity_gradient(operation: Operation) -> Tensor:
    """The identity rule at an elementwise function: `f(x) / x` in place of its derivative."""
    out = operation.run()
    return bent(out, lambda g, x: (g * out.detach() / (x + TINY),), operation.active[0])


_GRADIENT: dict[str, Rule] = dict.fromkeys(
    (
        "route", "linear", "addmm", "linear_product", "convolution", "product", "sum", "mean", "select", "gate",
        "softmax", "activation", "right_product", "dropout", "scale", "residual", "shift", "attention",
    ),
    gradient,
)  # fmt: skip
_NORMS: dict[str, Rule] = {
    "layer_norm": layer_norm(norm_gradient),
    "rms_norm": rms_norm,
    "rms_norm_module": rms_norm_module,
    "deviation": lambda operation: constant(operation),
}
CONSERVATIVE = RuleSet(
    "conservative",
    {**_GRADIENT, **_NORMS, "attention": attention((0.0, 0.0, 1.0)), "softmax": constant},
    otherwise=gradient,
)
"""Everything but attention and norms is left to the chain rule, as the paper says."""
CONSERVATIVE_MEAN = replace(
    CONSERVATIVE, rules={**CONSERVATIVE.rules, "layer_norm": layer_norm(norm_gradient_mean_constant)}
)
CONSERVATIVE_LXT = RuleSet(
    "conservative, as in LXT",
    {**CONSERVATIVE.rules, "activation": identity_gradient, "gate": constant_gate},
)
ATTN = RuleSet(
    "AttnLRP",
    {
        **_GRADIENT,
        **_NORMS,
        "attention": attention((0.25, 0.25, 0.5)),
        "product": halves,
        "activation": identity_gradient,
        "gate": halves,
    },
)
