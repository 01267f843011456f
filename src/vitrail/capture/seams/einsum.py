"""Einsum equations of attention: which operand is the query, which the map, and in which order their axes stand.

Only plain products of two operands are read: one axis is summed over, each operand has one axis of its own (a query or
a map may have its heads beside it), and they share the others. Whatever else an equation says, it is no attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from vitrail.errors import SeamError

Label = str | int
"""A letter, or the place of an axis that an ellipsis stands for, counted from the right."""
Order = tuple[int, ...]


@dataclass(frozen=True)
class Equation:
    """The labels of two operands and of their product."""

    left: tuple[Label, ...]
    right: tuple[Label, ...]
    out: tuple[Label, ...]

    @property
    def turned(self) -> "Equation":
        """The same product with its operands in the other order."""
        return Equation(self.right, self.left, self.out)

    def shared(self) -> tuple[Label, ...]:
        """The labels of both operands that the product keeps, in the order of the first operand."""
        return tuple(x for x in self.left if x in self.right and x in self.out)

    def own(self) -> tuple[Label, ...]:
        """The labels that only the first operand has and the product keeps."""
        return tuple(x for x in self.left if x not in self.right and x in self.out)

    def summed(self) -> tuple[Label, ...]:
        """The labels of both operands that the product does not keep."""
        return tuple(x for x in self.left if x in self.right and x not in self.out)


@dataclass(frozen=True)
class Einsum:
    """The operands of an einsum with their labels.

    Args:
        product: the equation, where it is a plain product of two operands.
        sizes: how many entries each labelled axis has.
    """

    operands: tuple[Tensor, ...]
    labels: tuple[tuple[Label, ...], ...]
    out: tuple[Label, ...]
    sizes: Mapping[Label, int]
    product: Equation | None

    @property
    def keyed(self) -> bool:
        """Return True if the operand with the result's last axis has another axis that the result keeps: samples."""
        return any(
            self.out[-1:] and self.out[-1] in labels and any(x in self.out[:-1] for x in labels)
            for labels in self.labels
        )

    def weighs(self, place: int) -> bool:
        """Return True if an operand `[..., q, k]` weighs others: it is summed over k, and it alone has q."""
        *_, query, key = self.labels[place]
        others = {label for other, labels in enumerate(self.labels) if other != place for label in labels}
        return key in others and key not in self.out and query in self.out and query not in others


def read(args: tuple) -> Einsum | None:
    """Return the parsed einsum; None if it takes a diagonal."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    given, arrow, wanted = str(equation).replace(" ", "").partition("->")
    labels = tuple(_expanded(text, x.ndim) for text, x in zip(given.split(","), operands, strict=True))
    if any(len(set(x)) != len(x) for x in labels):
        return None
    out = _expanded(wanted, None, *labels) if arrow else _implied(labels)
    sizes: dict[Label, int] = {}
    for names, x in zip(labels, operands, strict=True):
        sizes |= {name: max(size, sizes.get(name, 1)) for name, size in zip(names, x.shape, strict=True)}
    whole = all(
        x.shape[i] == sizes[name] for names, x in zip(labels, operands, strict=True) for i, name in enumerate(names)
    )
    product = Equation(labels[0], labels[1], out) if len(labels) == 2 and whole else None
    # Every label has to be kept, or summed over in both operands together.
    if product is not None and {*product.left, *product.right} != {*product.out, *product.summed()}:
        product = None
    return Einsum(tuple(operands), labels, out, sizes, product)


def _expanded(text: str, ndim: int | None, *others: tuple[Label, ...]) -> tuple[Label, ...]:
    """The labels of one operand, or of the product, with an ellipsis written out."""
    before, dots, after = text.partition("...")
    if not dots:
        return tuple(text)
    hidden = max((sum(isinstance(x, int) for x in labels) for labels in others), default=0)
    count = hidden if ndim is None else ndim - len(before) - len(after)
    return (*before, *range(-count, 0), *after)


def _implied(labels: tuple[tuple[Label, ...], ...]) -> tuple[Label, ...]:
    """The labels of a result whose equation has no arrow: an ellipsis', then letters that occur once, sorted."""
    every = [x for some in labels for x in some]
    hidden = sorted({x for x in every if isinstance(x, int)})
    return (*hidden, *sorted(x for x in every if isinstance(x, str) and every.count(x) == 1))


def order(labels: tuple[Label, ...], wanted: tuple[Label, ...]) -> Order:
    """Return the order of the axes of a tensor with these labels that gives the wanted order."""
    return tuple(labels.index(x) for x in wanted)


def inverse(order: Order) -> Order:
    """The order that undoes another."""
    return tuple(order.index(axis) for axis in range(len(order)))


def is_plain(order: Order) -> bool:
    """Return True if an order leaves every axis in its place."""
    return order == tuple(range(len(order)))


def scoring(equation: Equation, sizes: Mapping[Label, int]) -> tuple[int, Order, Order] | None:
    """Return how a product makes scores whose last axis is the keys; None if it does not.

    The query's place among the operands, and the orders that give queries and keys as `[..., t, d]`.
    """
    key = equation.out[-1:]
    place = 0 if equation.turned.own() == key else 1
    turned = equation if place == 0 else equation.turned  # the query first
    roles = _roles(turned, sizes, key)
    if roles is None or turned.turned.own() != key or len(turned.summed()) != 1:
        return None
    heads, query = roles
    batch = turned.shared()
    query_order = order(turned.left, (*batch, *heads, query, *turned.summed()))
    return place, query_order, order(turned.right, (*batch, *key, *turned.summed()))


def applying(equation: Equation, sizes: Mapping[Label, int]) -> tuple[Order, Order, Order] | None:
    """Return how a product applies the map, its first operand, to values; None if it does anything else with it.

    The orders that give map, values and result as `[..., q, k]`, `[..., k, d]` and `[..., q, d]`. Values that all heads
    share have no axis of heads.
    """
    key = equation.left[-1:]
    if equation.summed() != key or len(equation.turned.own()) != 1:
        return None
    roles = _roles(equation, sizes, key)
    if roles is None and len(equation.shared()) == 1 and len(equation.own()) == 2:
        one, two = equation.own()
        raise SeamError(
            f"attention by einsum whose heads share their values: of the axes {one!r} and {two!r}, of {sizes[one]} and "
            f"{sizes[two]} entries, with {sizes[key[0]]} keys, it is not known which are heads and which queries. "
            "Give the values an axis of heads, as in 'bhqk,bhkd->bhqd'."
        )
    if roles is None:
        return None
    heads, query = roles
    batch, channel = equation.shared(), equation.turned.own()
    return (
        order(equation.left, (*batch, *heads, query, *key)),
        order(equation.right, (*batch, *key, *channel)),
        order(equation.out, (*batch, *heads, query, *channel)),
    )


def _roles(
    equation: Equation, sizes: Mapping[Label, int], key: tuple[Label, ...]
) -> tuple[tuple[Label, ...], Label] | None:
    """Return the roles of the labels that only the query, or the map, has: the heads, and the axis of the queries."""
    own, axes = equation.own(), len(equation.shared()) + len(equation.own()) + 1
    if axes not in (3, 4) or not equation.shared() or len(own) not in (1, 2):
        return None
    if len(own) == 1:
        return (), own[0]
    alike = [x for x in own if sizes[x] == sizes[key[0]]]  # tokens that read themselves are as many as are read
    return (tuple(x for x in own if x != alike[0]), alike[0]) if len(alike) == 1 else None
