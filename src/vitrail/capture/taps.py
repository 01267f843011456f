"""Tensors of a pass by where modules show them: what each module was given and what it gave.

A tensor that was found to be of use in one pass is read in another one by hooks on a few modules, and no function of
the model is watched for it.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.capture.torch_private import writes_to
from vitrail.models.taking import every_module


@dataclass(frozen=True)
class Tap:
    """Where a pass shows a tensor.

    Args:
        module: the number of a module among all modules of the model.
        turn: how often that module had begun before, or ended.
        place: the number of the argument; None for the first tensor that the module gives.
    """

    module: int
    turn: int
    place: int | None


@dataclass(eq=False)
class Tapped:
    """The tensors that modules show in one pass, each with the version that it had then.

    Args:
        wanted: those that are kept; None for all.
    """

    wanted: Collection[Tap] | None = None
    modules: list[nn.Module] = field(default_factory=list)
    tensors: dict[Tap, tuple[Tensor, int]] = field(default_factory=dict)
    turns: Counter[tuple[int, str]] = field(default_factory=Counter)

    def hooks(self, model: nn.Module) -> list[RemovableHandle]:
        """Set the hooks that keep the tensors while a model runs."""
        self.modules = every_module(model)
        begin = end = set(range(len(self.modules)))
        if self.wanted is not None:
            begin = {tap.module for tap in self.wanted if tap.place is not None}
            end = {tap.module for tap in self.wanted if tap.place is None}
        entered = [(self.modules[number], partial(self._enter, number)) for number in begin]
        left = [(self.modules[number], partial(self._leave, number)) for number in end]
        return [
            *(module.register_forward_pre_hook(hook, with_kwargs=True) for module, hook in entered),
            *(module.register_forward_hook(hook) for module, hook in left),
        ]

    def _enter(self, number: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
        turn = self._turn(number, "begins")
        for place, x in enumerate((*args, *kwargs.values())):
            self._keep(Tap(number, turn, place), x)

    def _leave(self, number: int, module: nn.Module, args: tuple, out: Any) -> None:  # noqa: ANN401
        first = next(iter(out), None) if isinstance(out, (tuple, list)) else out
        self._keep(Tap(number, self._turn(number, "ends"), None), first)

    def _turn(self, number: int, what: str) -> int:
        """Count how often a module began, or ended."""
        self.turns[number, what] += 1
        return self.turns[number, what] - 1

    def _keep(self, tap: Tap, x: object) -> None:
        if isinstance(x, Tensor) and x.is_floating_point() and (self.wanted is None or tap in self.wanted):
            self.tensors[tap] = x, writes_to(x)

    def named(self) -> dict[int, Tap]:
        """Return where each tensor was shown first, by its identity, if nothing has been written into it since."""
        kept = [(id(x), tap) for tap, (x, version) in self.tensors.items() if writes_to(x) == version]
        return dict(reversed(kept))

    def read(self, taps: Sequence[Tap | None]) -> list[Tensor] | None:
        """Return the tensors at some places; None if one was not shown, or has been written into since."""
        found = [None if tap is None else self.tensors.get(tap) for tap in taps]
        kept = [one[0] for one in found if one is not None and writes_to(one[0]) == one[1]]
        return kept if len(kept) == len(found) else None
