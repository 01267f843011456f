"""Facts about the tensors of hand-written attention: products, scores, maps, and maps applied to values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.seams import einsum


@dataclass(frozen=True, eq=False)
class Product:
    """A product that scores may come from.

    Args:
        operands: what was multiplied, as the model has it.
        query: the operand whose rows are the rows of the result, as `[..., q, d]`; None if there is no such.
        place: which operand that is.
        key_order: the axes of the other operand in the order `[..., k, d]`.
        itself: whether `query` is the model's own tensor, and not a view of it that only this product reads.
        keyed: whether what stands in the place of keys belongs to single samples, and is no weight.
        activations: whether both operands do.
    """

    operands: tuple[Tensor, ...]
    shape: torch.Size = field(default_factory=torch.Size)
    query: Tensor | None = None
    place: int = 0
    key_order: einsum.Order = ()
    itself: bool = True
    keyed: bool = True
    activations: bool = True

    @property
    def key(self) -> Tensor | None:
        """The operand beside the query, as `[..., k, d]`; heads that share it are one."""
        if self.query is None or self.read is None:
            return None
        key = self.read.permute(self.key_order)
        return key.unsqueeze(1) if key.ndim < self.query.ndim else key

    @property
    def read(self) -> Tensor | None:
        """The operand beside the query as the model has it."""
        return self.operands[1 - self.place] if self.query is not None else None


@dataclass(frozen=True)
class Scores:
    """The products that a tensor is made of.

    Args:
        products: all that took part.
        main: the one whose entries stand at the same places in the tensor.
        scale: what the entries of the main product are multiplied by.
        plain: whether nothing else became of them than this scale and a bias.
    """

    products: tuple[Product, ...]
    main: Product | None = None
    scale: float = 1.0
    plain: bool = True


@dataclass(frozen=True, eq=False)
class Powers:
    """Powers of e, or a log-softmax, of scores.

    Args:
        exponents: what they were taken of; None where that was overwritten, or keys were hidden since.
        scores: where that came from.
    """

    exponents: Tensor | None
    scores: Scores


@dataclass(frozen=True)
class AttentionMap:
    """The softmax that a tensor is made of.

    Args:
        softmax_input: what entered the softmax, of the keys that are left.
        scores: where that came from.
        shape: of the softmax's result.
        keys: which of the softmax's keys are left, from the first to before the last; None for all.
        order: which axis of the map each axis of the tensor is.
        straight: the last tensor before axes were moved; None while they are where they were, or once it is changed.
        changed: the functions that changed entries, in order.
        in_parts: whether the softmax was written in parts.
    """

    softmax_input: Tensor | None
    scores: Scores | None
    shape: torch.Size
    order: tuple[int, ...]
    keys: tuple[int, int] | None = None
    straight: Tensor | None = None
    changed: tuple[str, ...] = ()
    in_parts: bool = False


@dataclass(frozen=True)
class Reading:
    """The reading of a product before it is computed.

    Args:
        args: its arguments; an einsum's query and map as views in the usual order of axes, so that their gradients
            are known in that order.
        product: what it is for scores that it may make.
        applied: how it applies a map to values, if it does.
    """

    args: tuple
    product: Product
    applied: "Applied | None" = None


@dataclass(frozen=True)
class Applied:
    """A map applied to values.

    Args:
        source: the model's own tensor that is the map.
        weights: the map as `[..., q, k]`.
        map_order: the axes of the model's map in the usual order.
        value: what it is applied to, as `[..., k, d]`; None where the product does more than apply the map.
        place: where the values stand among the arguments.
        value_order: the model's axes of the values in the usual order.
        output_order: the axes of the result in the usual order.
        added: whether something else is added to the result.
    """

    source: Tensor
    weights: Tensor
    map_order: einsum.Order
    value: Tensor | None = None
    place: int = 0
    value_order: einsum.Order = ()
    output_order: einsum.Order = ()
    added: bool = False


RESHAPES = {torch.unsqueeze, Tensor.unsqueeze, Tensor.__getitem__, Tensor.view, Tensor.reshape, torch.reshape}
FROM_ZERO = {torch.clamp, Tensor.clamp, torch.clamp_min, Tensor.clamp_min}
TINIEST_SUM = 1e-4
"""What may bound a sum of powers of e from below, so that it stays the sum."""


def same_total(func: Callable[..., Any], out: Tensor, args: tuple, kwargs: dict) -> bool:
    """Return True if sums over keys stay what they are: in another shape, or kept from zero by a tiny number."""
    if func in RESHAPES:
        return out.numel() == args[0].numel()
    least = next((x for x in (*args[1:], *kwargs.values()) if isinstance(x, (int, float))), None)
    return func in FROM_ZERO and least is not None and 0 <= least <= TINIEST_SUM
