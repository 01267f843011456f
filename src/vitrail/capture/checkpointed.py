"""Shadows of models with checkpointed regions, which save all they need for the backward pass.

A region under `torch.utils.checkpoint` saves nothing in the forward pass and runs again in the backward pass, when the
hooks and modes of an explanation are gone: rules and replaced results would be lost there. `keep_saved` lets every
operation of a shadow save what it needs for its own gradient, as if nothing were checkpointed.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from vitrail.capture.torch_private import saving_hooks

T = TypeVar("T")


def keep_saved(own: nn.Module) -> None:
    """Let a shadow run without recomputing anything from now on."""
    forward, regions = own.forward, _Regions()
    for module in own.modules():
        if module is not own:
            module.register_forward_pre_hook(regions.enter, prepend=True)
            module.register_forward_hook(regions.leave, always_call=True)

    def kept(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        outside = saving_hooks()
        regions.start(outside)
        try:
            with _KeepSaved(outside):
                return forward(*args, **kwargs)
        finally:
            regions.close()  # torch calls no hook after a KeyboardInterrupt

    vars(own)["forward"] = kept
    vars(own)["_keeps_saved"] = True


def keeps_saved(own: nn.Module) -> bool:
    """Return True if a shadow recomputes nothing."""
    return "_keeps_saved" in vars(own)


def without_recomputation(own: nn.Module, measure: Callable[[], T]) -> T:
    """Return the measurement of a shadow; measure again if a checkpointed region is recomputed differently."""
    try:
        return measure()
    except CheckpointError:
        keep_saved(own)
    # Not above: torch 2.11 leaves a region that failed when its error is gone.
    return measure()


def _undone() -> saved_tensors_hooks:
    """Saves tensors as they are; detached, because a result that saved itself would never be freed."""
    return saved_tensors_hooks(Tensor.detach, lambda x: x)


class _KeepSaved(TorchFunctionMode):
    """Undo what a checkpointed region does to each torch function in it."""

    def __init__(self, outside: object) -> None:
        super().__init__()
        self.outside = outside

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run the function; save its tensors as they are if it is in a checkpointed region."""
        if saving_hooks() == self.outside:
            return func(*args, **(kwargs or {}))
        with _undone():
            return func(*args, **(kwargs or {}))


class _Regions:
    """Undo what a checkpointed region does to whole modules in it: rules may replace them by functions of their own."""

    def __init__(self) -> None:
        self.outside: object = None
        self.entered: list[saved_tensors_hooks | None] = []

    def start(self, outside: object) -> None:
        """Take note of how operations save their tensors outside of all regions."""
        self.outside = outside
        self.entered.clear()

    def enter(self, *_: object) -> None:
        """A module begins."""
        undone = None if saving_hooks() == self.outside else _undone()
        self.entered.append(undone)
        if undone is not None:
            undone.__enter__()

    def leave(self, *_: object) -> None:
        """A module ends."""
        undone = self.entered.pop() if self.entered else None
        if undone is not None:
            undone.__exit__()

    def close(self) -> None:
        """Leave all modules."""
        while self.entered:
            self.leave()
