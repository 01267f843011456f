"""Conservative propagation: gradient times input with constant attention and constant norms.

Ali et al., "XAI for Transformers: Better Explanations through Conservative Propagation", ICML 2022, arXiv:2202.07304.
The relevance is gradient times input on a graph in which attention and the scale of norms are constants. AttnLRP shares
the rules for norms and for elementwise functions. Rules run in the precision of the pass and compute in
float32 or better: by a Triton kernel on CUDA, else by torch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.capture.recording.layer import widen
from vitrail.errors import OptionError, RuleError
from vitrail.methods.options import at_level, check_choice, check_rules, under_rules
from vitrail.relevance import Result
from vitrail.relevance.fused import DTYPES, has_triton, triton_kernels
from vitrail.relevance.lrp import RuleSet
from vitrail.relevance.lrp.kinds import POWERS, ROOTS
from vitrail.relevance.lrp.operation import Operation, Rule, gradient, group_norm_parts, norm_parts, read_norm
from vitrail.relevance.runner import RerunMethod, Runner

TINY = 1e-10
WIDEST = 16_384
"""Entries of a row that a program holds at once."""
BLOCK = 4096


def _by_kernel(*operands: Tensor) -> bool:
    """Return True if a kernel can do this: operands of one shape in one piece of memory each, on CUDA."""
    first = operands[0]
    return (
        first.is_cuda
        and has_triton()
        and all(x.shape == first.shape and x.dtype in DTYPES and x.is_contiguous() for x in operands)
    )


def quotient(gradient: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """The identity rule: `gradient * f(x) / x`, which stands for `gradient * f'(x)`."""
    if _by_kernel(gradient, value, x):
        return quotient_by_kernel(gradient, value, x)
    return (widen(gradient) * widen(value) / (widen(x) + TINY)).to(x.dtype)


def quotient_by_kernel(gradient: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """The same by a kernel."""
    out = torch.empty_like(x)
    programs = -(-x.numel() // BLOCK)
    if programs:
        triton_kernels().quotient[(programs,)](gradient, value, x, out, x.numel(), TINY=TINY, BLOCK=BLOCK, num_warps=8)
    return out


def norm_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor | None, eps: float, axes: list[int], *, centered: bool = True
) -> Tensor:
    """The gradient of a layer norm whose standard deviation is constant (LN rule).

    Args:
        centered: whether the mean is a function of the input; else it is constant too.
    """
    if axes == [-1] and x.shape[-1] <= WIDEST and _by_kernel(gradient, x):
        return norm_by_kernel(gradient, x, weight, eps, centered=centered)
    scaled = widen(gradient) if weight is None else widen(gradient) * weight
    scaled = scaled * (widen(x).var(dim=axes, correction=0, keepdim=True) + eps).rsqrt()
    return (scaled - scaled.mean(dim=axes, keepdim=True) if centered else scaled).to(x.dtype)


def norm_by_kernel(gradient: Tensor, x: Tensor, weight: Tensor | None, eps: float, *, centered: bool) -> Tensor:
    """The same by a kernel, one program for each row."""
    out, width = torch.empty_like(x), x.shape[-1]
    rows, block = x.numel() // max(width, 1), 1 << max(width - 1, 1).bit_length()
    if rows:
        triton_kernels().layer_norm[(rows,)](
            gradient, x, x if weight is None else weight.contiguous(), out, width, eps, WEIGHTED=weight is not None,
            CENTERED=centered, BLOCK=block, num_warps=4 if block <= 2048 else 8,
        )  # fmt: skip
    return out


def layer_norm(*, centered: bool) -> Rule:
    """A layer norm whose deviation is constant, and its mean too unless it is centered."""

    def rule(operation: Operation) -> Tensor:
        x, weight, eps, axes = norm_parts(operation)
        return operation.overridden(lambda g, x: (norm_gradient(g, x, weight, eps, axes, centered=centered),), x)

    return rule


def group_norm(operation: Operation) -> Tensor:
    """A norm over groups of channels and all places: in each group the layer norm, its deviation constant."""
    x, groups, weight, eps = group_norm_parts(operation)

    def pullback(g: Tensor, x: Tensor) -> tuple[Tensor]:
        scaled = widen(g) if weight is None else widen(g) * weight.view(-1, *[1] * (x.ndim - 2))
        rows, values = (y.reshape(len(x), groups, -1) for y in (scaled, x))
        return (norm_gradient(rows, values, None, eps, [-1]).view_as(x).to(x.dtype),)

    return operation.overridden(pullback, x)


def rms_norm(operation: Operation) -> Tensor:
    """A norm without a mean, its scale constant."""
    x, weight, eps, axes = norm_parts(operation)

    def pullback(g: Tensor, x: Tensor) -> tuple[Tensor]:
        scaled = widen(g) if weight is None else widen(g) * weight
        return ((scaled * (widen(x).square().mean(dim=axes, keepdim=True) + eps).rsqrt()).to(x.dtype),)

    return operation.overridden(pullback, x)


class _ConstantScale(TorchFunctionMode):
    """Inside a norm written out by hand, what the input is divided by is a constant."""

    ROOTS = frozenset({torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.norm, Tensor.norm})
    WHOLE = frozenset({F.rms_norm, torch.rms_norm})

    def __init__(self, constant: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.constant = constant
        self.found = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        if func in self.WHOLE:
            self.found += 1
            x, weight, eps, axes = read_norm("rms_norm", args, kwargs or {})
            x = x * self.constant((x.square().mean(dim=axes, keepdim=True) + eps).rsqrt())
            return x if weight is None else x * weight
        out = func(*args, **(kwargs or {}))
        power = args[1] if func in POWERS and len(args) > 1 and isinstance(args[1], (int, float)) else 1
        if func not in self.ROOTS and power not in ROOTS:
            return out
        self.found += 1
        return self.constant(out)


def rms_norm_module(operation: Operation) -> Any:  # noqa: ANN401
    """The same for a module that writes the norm out."""
    with _ConstantScale(operation.constant) as scale:
        out = operation.run()
    if not scale.found:
        raise RuleError(f"the norm {operation.where!r} takes no root that could be held constant; no rule covers it.")
    return out


def normalize(operation: Operation) -> Tensor:
    """A vector divided by its length, which is constant."""
    (x,) = operation.active
    out = operation.run()
    lengths = divisor(*operation.args, **operation.kwargs).detach()
    return operation.passing(out, lambda g, x: ((widen(g) / lengths).to(x.dtype),), x)


def divisor(input: Tensor, p: float | int = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """Return the divisor of `F.normalize`."""
    return widen(input).norm(p, dim, keepdim=True).clamp(min=eps)


def over_constant(operation: Operation) -> Tensor:
    """A quotient whose denominator is constant, as that of a norm is."""
    numerator, denominator, *more = operation.args
    return operation.function(numerator, operation.constant(denominator), *more, **operation.kwargs)


def attention(shares: tuple[float, float, float]) -> Rule:
    """Fused attention whose query, key and value receive these shares of their gradients.

    The backward pass is that of the model's own kernel: no map is computed, and memory is the kernel's.
    """

    def rule(operation: Operation) -> Tensor:
        operands = (operation.shared(x, s, operand=True) for x, s in zip(operation.args[:3], shares, strict=True))
        return operation.function(*operands, *operation.args[3:], **operation.kwargs)

    return rule


def sampled(operation: Operation) -> Tensor:
    """Values interpolated from a feature map: linear in the map; the positions are constants."""
    places = [x for x in operation.active if x is not operation.args[0]]
    return operation.again({id(x): operation.constant(x) for x in places})


def constant(operation: Operation) -> Tensor:
    """A constant: relevance stops here."""
    return operation.constant(operation.run())


def identity_gradient(operation: Operation) -> Tensor:
    """The identity rule at an elementwise function: `f(x) / x` in place of its derivative."""
    out, x = operation.run(), operation.active[0]
    if operation.name != "activation":  # a function of several tensors
        value = out.detach()
        return operation.passing(out, lambda g, x: (quotient(g, value, x),), x)

    def pullback(g: Tensor, x: Tensor) -> tuple[Tensor]:
        """The value is computed again: kept, it would be the largest tensor of a block."""
        with torch.no_grad():
            return (quotient(g, operation.again({id(operation.active[0]): x}), x),)

    return operation.passing(out, pullback, x)


def router_constant(rule: Rule) -> Rule:
    """A rule for entrywise products in which one number for each token is a constant, as routers give to experts.

    Attention written as a sum of products has one number for each pair of tokens: its product has more entries than
    either factor.
    """
    channels = lambda x: x.shape[-1] if x.ndim else 1  # noqa: E731

    def with_constant(operation: Operation) -> Tensor:
        narrow, wide = sorted(operation.active, key=channels)[:: len(operation.active) - 1]
        for_each = torch.broadcast_shapes(narrow.shape, wide.shape) == wide.shape
        if channels(narrow) == 1 < channels(wide) and for_each:
            return operation.again({id(narrow): operation.constant(narrow)})
        return rule(operation)

    return with_constant


def _constant_gate(operation: Operation) -> Tensor:
    """A gated product whose gate, the factor that went through an activation, is a constant."""
    factors = (operation.constant(x) if x is operation.gate else x for x in operation.args[:2])
    return operation.function(*factors, *operation.args[2:], **operation.kwargs)


GRADIENT: dict[str, Rule] = dict.fromkeys(
    (
        "route", "linear", "addmm", "linear_product", "convolution", "product", "sum", "mean", "select", "gate",
        "softmax", "activation", "right_product", "dropout", "scale", "residual", "shift", "attention", "einsum",
        "linear_map", "write",
    ),
    gradient,
)  # fmt: skip
"""The chain rule, for all operations that it can be left to."""
NORMS: dict[str, Rule] = {
    "layer_norm": layer_norm(centered=True),
    "group_norm": group_norm,
    "rms_norm": rms_norm,
    "rms_norm_module": rms_norm_module,
    "deviation": constant,
    "normalize": normalize,
    "over_constant": over_constant,
}
CONSERVATIVE = RuleSet(
    "conservative",
    {
        **GRADIENT,
        **NORMS,
        "attention": attention((0.0, 0.0, 1.0)),
        "sampled": sampled,
        "softmax": constant,
        "gate": router_constant(gradient),
    },
    otherwise=gradient,
)
"""Everything but attention and norms is left to the chain rule, as the paper says; a router gives constants."""
CONSERVATIVE_MEAN = replace(CONSERVATIVE, rules={**CONSERVATIVE.rules, "layer_norm": layer_norm(centered=False)})
CONSERVATIVE_LXT = RuleSet(
    "conservative, as in LXT",
    {**CONSERVATIVE.rules, "activation": identity_gradient, "gate": router_constant(_constant_gate)},
)
RULES: dict[str, RuleSet] = {"paper": CONSERVATIVE, "lxt": CONSERVATIVE_LXT}


def gradient_times_input(name: str, table: RuleSet, level: str, precision: str) -> RerunMethod:
    """The relevance where the gradient ends: the input times its gradient by the rules, summed over channels."""

    def explain(runner: Runner) -> Result:
        x, gradient = runner.nonzero_gradient()
        return at_level(level, runner, x * gradient)

    return RerunMethod(explain, under_rules(table, level, precision), check=check_rules(name, level))


def build(
    *, rules: str = "paper", detach_mean: bool = False, level: str = "embedding_output", precision: str = "model"
) -> RerunMethod:
    """Gradient times input with attention and the scale of norms held constant.

    Args:
        rules: `paper`, or `lxt`: activations by the identity rule and gates constant as well, as in the LXT library.
        detach_mean: hold the mean of layer norms constant too.
        level: where the input is taken: `embedding_output`, `inputs_embeds` (text) or `pixels` (images).
        precision: `model` runs the model as it is; `float64` and `float32` run a copy of its weights.
    """
    table = check_choice("rules", rules, RULES)
    if detach_mean and table is not CONSERVATIVE:
        raise OptionError("detach_mean applies to rules='paper' only.")
    return gradient_times_input("conservative_lrp", CONSERVATIVE_MEAN if detach_mean else table, level, precision)
