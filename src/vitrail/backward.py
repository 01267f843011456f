"""One `autograd.grad` that reports each layer's gradients as soon as they are complete.

The engine reaches layers from last to first, which is the order every walk needs, so relevance can be
propagated while the backward pass runs and no layer's gradient has to be kept.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from vitrail.errors import TargetError
from vitrail.shadow import hooks
from vitrail.trace import Heard

UNMOVED = (
    "the target does not depend on what enters the attention layers, so there is no gradient to follow: the model cuts "
    "the graph (detach, no_grad, checkpoint with use_reentrant=True, 8-bit kernels without a gradient), or the target "
    "reads what the layers do not reach."
)
Show = Callable[[int, dict[str, Tensor], Tensor | None], None]


class Backward:
    """The gradients still awaited, layer by layer."""

    def __init__(self, heard: list[Heard], roots: list[Tensor], names: set[str], *, lowest: int) -> None:
        self.heard, self.lowest = heard, lowest
        self.roots = roots if lowest == 0 else self._lower_edge(lowest, roots)
        self.awaited = {index: tensors for index in range(len(heard)) if (tensors := self._tensors(index, names))}
        self.arrived: dict[int, dict[str, Tensor]] = {index: {} for index in range(len(heard))}
        self.next = len(heard) - 1
        self.scale: Tensor | None = None

    def run(self, scalar: Tensor, logits: Tensor, show: Show, *, again: bool) -> None:
        """Differentiate the scalar, and show every layer, last to first."""
        if not scalar.requires_grad:
            raise TargetError(UNMOVED)
        self.show = show
        with ExitStack() as stack:
            stack.enter_context(hooks([h for i in self.awaited for h in self._hooks(i)]))
            seed, outputs = self._seed(scalar, logits)
            found = torch.autograd.grad(outputs, self.roots, seed, retain_graph=again, allow_unused=True)
        at_roots = list(zip(self.roots, found, strict=True))
        if all(gradient is None for gradient in found):
            raise TargetError(UNMOVED)
        while self.next >= 0:
            for name, tensor in self.awaited.get(self.next, {}).items():
                gradient = next((g for root, g in at_roots if root is tensor), None)
                # What the engine never reached has no influence on the scalar.
                default = torch.zeros_like(tensor) if gradient is None else gradient
                self.arrived[self.next].setdefault(name, default)
            self._show_next()

    def _seed(self, scalar: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Where the backward pass starts. In float16 a probability's gradient would underflow: start it at size one."""
        if not any(root.dtype is torch.float16 for root in self.roots):
            return torch.ones_like(scalar), scalar
        (gradient,) = torch.autograd.grad(scalar.sum(), logits, retain_graph=True, allow_unused=True)
        if gradient is None:  # a scalar of something else than the logits
            return torch.ones_like(scalar), scalar
        self.scale = gradient.flatten(1).abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        seed = gradient / self.scale.view(-1, *[1] * (gradient.ndim - 1))
        return seed, logits

    def _lower_edge(self, lowest: int, roots: list[Tensor]) -> list[Tensor]:
        """What enters the lowest layer that is asked for its gradient."""
        below = self.heard[lowest].states.get("entering")
        if below is None and lowest > 0:
            below = self.heard[lowest - 1].states.get("leaving")
        return roots if below is None else [below]

    def _tensors(self, index: int, names: set[str]) -> dict[str, Tensor]:
        """The tensors of one layer whose gradients are awaited, by the gradient's name."""
        if index < self.lowest:
            return {}
        (call,) = self.heard[index].calls
        states = self.heard[index].states
        attention = call.weights if call.weights is not None else call.output
        places = {
            "leaving_grad": states.get("leaving"),
            "output_grad": attention,
            "query_grad": call.query,
            "entering_grad": states.get("entering"),
            "attention_normed_grad": states.get("attention_normed"),
        }
        return {name: x for name, x in places.items() if name in names and x is not None and x.requires_grad}

    def _hooks(self, index: int) -> list[RemovableHandle]:
        def hook_for(name: str) -> Callable[[Tensor], None]:
            def hook(gradient: Tensor | None) -> None:
                if gradient is None:
                    return
                self.arrived[index][name] = gradient.detach()
                if index == self.next and len(self.arrived[index]) == len(self.awaited[index]):
                    self._show_next()

            return hook

        # Roots are leaves: their gradients are the call's results.
        return [
            tensor.register_hook(hook_for(name))
            for name, tensor in self.awaited[index].items()
            if not any(tensor is root for root in self.roots)
        ]

    def _show_next(self) -> None:
        index = self.next
        self.next -= 1
        self.show(index, self.arrived.pop(index), self.scale)
