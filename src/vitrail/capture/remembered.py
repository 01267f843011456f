"""What was measured of a shadow, remembered until its weights change.

What a model does with its tokens may depend on its weights: a gate of zero hides what it closes. A measurement holds as
long as the parameters are the same tensors, none was written to, and what was zero still is: torch does not count
writes through `.data`, and buffers are copied for every call.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitrail.capture.shadow import memory_of
from vitrail.capture.torch_private import writes_to_all
from vitrail.models.taking import every_module

T = TypeVar("T")
FIRST = 64
"""How many numbers of a tensor are looked at first."""
Place = tuple[int, str, str]
"""Where a tensor is: the number of its module, the table it is in, its name there."""
TABLES: dict[str, Callable[[nn.Module], Mapping[str, object]]] = {
    "parameters": lambda module: module._parameters,
    "buffers": lambda module: module._buffers,
    "attributes": vars,
}


class Remembered(Generic[T]):
    """What was measured of shadows, for each form of their inputs.

    Args:
        most: how many forms are remembered for one shadow.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: WeakKeyDictionary[nn.Module, dict[Hashable, tuple[T, tuple[Place, ...]]]] = WeakKeyDictionary()

    def get(self, model: nn.Module, form: Hashable, measure: Callable[[], T]) -> T:
        """What is known for this form, measured if it is not known or no longer holds."""
        kept, memory = self.kept.setdefault(model, {}), memory_of(model)
        call, known = memory.call, memory.known
        if "weights" not in call:  # the same for all measurements of one call
            call["modules"] = known["modules"] = known.get("modules") or every_module(model)
            call["zeros"], call["weights"] = set[tuple[Place, ...]](), _identity(call["modules"])
        key = form, call["weights"]
        found = kept.get(key)
        if found is None or (found[1] not in call["zeros"] and _any_nonzero(call["modules"], found[1])):
            if len(kept) >= self.most:
                kept.clear()
            if "places" not in call:
                call["places"] = _zeros(call["modules"])
            found = kept[key] = measure(), call["places"]
        call["zeros"].add(found[1])
        return found[0]


def _identity(modules: Sequence[nn.Module]) -> tuple[int, int]:
    """Which tensors the parameters are, where they lie, and how often they were written to."""
    weights = [x for module in modules for x in module._parameters.values() if x is not None]
    places = [x.data_ptr() if _is_plain(x) else 0 for x in weights]
    return writes_to_all(weights), hash((tuple(map(id, weights)), tuple(places)))


def _is_plain(x: Tensor) -> bool:
    return type(x) in (Tensor, nn.Parameter) and not x.is_meta and x.is_floating_point()


def _zeros(modules: Sequence[nn.Module]) -> tuple[Place, ...]:
    """The places of all tensors that are zero everywhere."""
    tensors = [
        ((number, table, name), x.detach())
        for number, module in enumerate(modules)
        for table, found in TABLES.items()
        for name, x in found(module).items()
        if isinstance(x, Tensor) and _is_plain(x)
    ]
    # Nearly all tensors show by their first numbers that they are not zero.
    asked = [(place, x, (x.view(-1)[:FIRST] if x.is_contiguous() else x).any()) for place, x in tensors]
    rest = [(place, x.any()) for place, x, found in asked if not bool(found)]
    return tuple(place for place, found in rest if not bool(found))


def _any_nonzero(modules: Sequence[nn.Module], places: Sequence[Place]) -> bool:
    """Whether a tensor in any of these places is not zero; asked once for all of a kind."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for number, table, name in places:
        x = TABLES[table](modules[number]).get(name)
        if not isinstance(x, Tensor):
            return True
        kinds.setdefault((x.device, x.dtype), []).append(x.detach().flatten())
    return any(bool(torch.cat(found).any()) for found in kinds.values())
