"""Results that a model takes out of the graph, kept in it while its structure is measured.

A model may detach what attention or a feed-forward part gives, as some trainings do. Gradients then leave out what went
that way, and so does every map that is made of them. While structure is measured, a detached tensor is a copy whose
gradient can be let through or stopped: what depends on what is seen as if nothing were detached, and comparing the two
tells whether gradients of the model are those of what it computes. They are where only a maximum is detached that a
softmax is shifted by.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.capture.structure.token_codes import State, in_graph, tensor_of
from vitrail.capture.torch_private import current_transform, without_functions

Known = Tensor | State | None
DETACHING = {Tensor.detach, torch.detach, Tensor.data.__get__}  # pyright: ignore[reportAttributeAccessIssue]
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
COARSE = 5e-2
"""How far gradients may be apart, by the largest entry, to be the same; the second in half precision."""


class _Gate(torch.autograd.Function):
    """A copy whose gradient passes while `gates.open`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gates: "KeepDetached") -> Tensor:  # noqa: ANN401
        """The copy."""
        ctx.gates = gates
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        """Return the gradient of the tensor that was detached."""
        return grads[0] if ctx.gates.open else torch.zeros_like(grads[0]), None


class KeepDetached(TorchFunctionMode):
    """Keep what a model detaches in the graph, and let gradients through while `open`.

    It has to be entered after all other modes, whose own functions it then does not see. Hooks use `leaf_of`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open, self.count = True, 0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:  # noqa: ANN401
        """Run the function; give a copy that is in the graph where it would detach."""
        if func not in DETACHING or not _is_state(args[0]):
            return func(*args, **(kwargs or {}))
        self.count += 1
        return _Gate.apply(args[0], self)

    def cut(self, results: Sequence[Known], places: Sequence[Known], *, partly: bool = False) -> bool:
        """Return True if results depend on places in a way that gradients of the model leave out.

        Args:
            partly: only if some gradient of the model arrives.
        """
        given = [x for x in results if x is not None and x.requires_grad]
        read = [x for x in places if x is not None and x.requires_grad]
        if not self.count or not given or not read:
            return False
        generator = torch.Generator().manual_seed(3)
        seeds = [torch.randn(x.shape, generator=generator).to(tensor_of(x)) for x in given]
        ends, starts = list(map(in_graph, given)), list(map(in_graph, read))

        def pulled() -> list[Tensor | None]:
            return list(torch.autograd.grad(ends, starts, seeds, retain_graph=True, allow_unused=True))

        whole = pulled()
        self.open = False
        try:
            own = pulled()
        finally:
            self.open = True
        pairs = [(a, b) for a, b in zip(whole, own, strict=True) if a is not None and b is not None]
        if partly and not any(bool(b.any()) for _, b in pairs):
            return False
        return any(_differ(a, b) for a, b in pairs)


def _is_state(x: object) -> bool:
    """Return True for a tensor of real numbers that a module computed, in a graph that may be added to."""
    computed = type(x) is Tensor and x.requires_grad and x.is_floating_point()
    return computed and torch.is_grad_enabled() and current_transform() is None


def leaf_of(x: Tensor) -> Tensor:
    """Return a leaf with the numbers of a tensor, cut from its graph by a measurement and not by the model."""
    with without_functions():
        return x.detach().requires_grad_()


def _differ(whole: Tensor, own: Tensor) -> bool:
    allowed = TOLERANCES.get(whole.dtype, COARSE) * whole.abs().amax()
    return bool((whole - own).abs().amax() > allowed)
