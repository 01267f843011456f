"""Quotients that no rule covers: attention whose denominators are sums of products or of powers of e.

Rules hold what a state is divided by constant, because it is the deviation of a norm. Where `exp(s) v / sum(exp(s))` or
`q (k^T v) / (q k)` is computed, the denominator is a function of a factor of the numerator, and no constant.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.graph_nodes import Node, node_of
from vitrail.relevance.lrp.operation import Operation

PRODUCTS = frozenset({"product", "einsum", "gate"})
NOTED = PRODUCTS | {"activation"}
EXPONENTIALS = frozenset({torch.exp, Tensor.exp})
SIZES = frozenset({torch.abs, Tensor.abs, torch.square, Tensor.square, torch.pow, Tensor.pow, Tensor.__pow__})
"""What makes a sum the size of a vector, as in a norm."""
PROJECTIONS = frozenset({"AddmmBackward0", "MmBackward0", "ConvolutionBackward0"})
"""What comes out of these is a new representation, unless both operands are activations."""
MOVES = ("Transpose", "View", "UnsafeView", "ReshapeAlias", "Permute", "T", "Expand", "Clone", "Unsqueeze", "Squeeze",
         "Div", "Mul", "ToCopy", "MaskedFill", "Where")  # fmt: skip
SUMS = ("Sum", "Mean")

HELD = "Rules hold denominators constant, as those of norms are, and this one is not."
SOFTMAX = f"{HELD} Call torch.softmax, or take a method without rules, such as integrated_gradients."
OTHER = f"{HELD} Take a method without rules, such as integrated_gradients."
IN_PARTS = f"divides powers of e by their sum, as a softmax in parts does. {SOFTMAX}"
LATER = (
    "divides a product by the sum of one of its factors, powers of e, as a softmax in parts does that is normalised "
    f"after its product with the values. {SOFTMAX}"
)
LINEAR = (
    "divides a product of activations by a function of one of its factors, or by its own sum, as linear attention does."
    f" {OTHER}"
)


@dataclass(eq=False)
class Quotients:
    """Facts about the products and functions of one pass, to tell what a denominator is a function of."""

    products: dict[Node, tuple[Node, ...]] = field(default_factory=dict)  # with their factors
    powers: set[Node] = field(default_factory=set)
    sizes: set[Node] = field(default_factory=set)

    def note(self, operation: Operation, func: Callable[..., Any], out: object) -> None:
        """Keep what an operation gave, if it is a product of activations, a power of e or a size."""
        node = node_of(out) if isinstance(out, Tensor) else None
        if node is None:
            return
        if operation.name in PRODUCTS and len(operation.active) > 1:
            factors = [node_of(x) for x in operation.active]
            self.products[node] = tuple(x for x in factors if x is not None)
        elif func in EXPONENTIALS:
            self.powers.add(node)
        elif func in SIZES:
            self.sizes.add(node)

    def why_refused(self, numerator: Tensor, denominator: Tensor) -> str | None:
        """Say what a quotient is whose denominator no rule may hold constant; None where it may be."""
        above, below = node_of(numerator), node_of(denominator)
        behind = self._behind(below)
        if not behind or above is None:
            return None
        if above in behind:
            return self._by_own_sum(above, below) if numerator.shape != denominator.shape else None
        read = self._behind(above)
        products = read & self.products.keys()
        # What is a function of the product itself, as a norm is, says nothing of its factors.
        behind = self._behind(below, stops=products)
        factors = {factor for product in products for factor in self.products[product]} & read & behind
        if not factors:
            return None
        return LATER if any(self._behind(factor) & self.powers for factor in factors) else LINEAR

    def _by_own_sum(self, above: Node, below: Node | None) -> str | None:
        """The same where the denominator is a function of the whole numerator, as in norms."""
        between = self._behind(below, stops={above})
        if between & self.sizes or not any(_is(node, SUMS) for node in between):
            return None
        if self._behind(above) & self.powers:
            return IN_PARTS
        return LINEAR if self._behind(above, through=MOVES) & self.products.keys() else None

    def _behind(
        self, start: Node | None, *, stops: Iterable[Node] = (), through: tuple[str, ...] | None = None
    ) -> set[Node]:
        """The nodes that relevance passes on its way back, as far as the last projections.

        Args:
            stops: nodes behind which the walk does not go on.
            through: the only functions behind which it goes on; None for all.
        """
        found, left, ends = set[Node](), [start], set(stops)
        while left:
            node: Any = left.pop()
            if node is None or node in found or _is_constant(node):
                continue
            found.add(node)
            projects = node.name() in PROJECTIONS and node not in self.products
            if not projects and node not in ends and (through is None or _is(node, through)):
                left += [before for before, _ in node.next_functions]
        return found


def _is(node: Any, names: tuple[str, ...]) -> bool:  # noqa: ANN401
    """Return True if a node is one of these functions."""
    return node.name().partition("Backward")[0] in names


def _is_constant(node: Node) -> bool:
    """Return True if a rule gives a value no relevance."""
    shares = getattr(node, "shares", None)
    return shares is not None and shares["relevance"] == 0
