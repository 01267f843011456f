"""What a method reads of a block as soon as it has run, so that the states it takes need not be kept until the walk.

TokenTM reads lengths and angles. The states they are made of would take, beside the graph, 30 to 75 % of what the graph
of a model with frozen weights keeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vitrail.capture.layers import stream_around, unequal, weights_of, with_added
from vitrail.capture.recording import Layer, own_dtypes
from vitrail.capture.seams.call import call_shape, operands_of
from vitrail.capture.torch_private import without_functions
from vitrail.errors import SeamError, VitrailError

if TYPE_CHECKING:
    from vitrail.capture.hooks import Capture


@dataclass(frozen=True)
class Early:
    """What a method reads of a layer before any gradient is known.

    Args:
        read: a function of the layer's operands, weights and states; not of `valid`, `readout` and gradients.
        needs: the states.
    """

    read: Callable[[Layer], Any]
    needs: frozenset[str]

    def __call__(self, layer: Layer) -> Any:  # noqa: ANN401
        """What was read as the forward pass left the layer, or what can be read of its states now."""
        found = layer.early[self] if self in layer.early else self.read(layer)
        if isinstance(found, VitrailError):
            raise found
        return found


@dataclass(frozen=True)
class EarlyReads:
    """What the methods of one pass read early, and the states that none of them reads after that."""

    reads: tuple[Early, ...] = ()
    passing: frozenset[str] = frozenset()


def read_together(methods: Sequence[tuple[frozenset[str], Early | None]]) -> EarlyReads:
    """What these methods read early together.

    Args:
        methods: of each, all that it needs, and what of that it reads early.
    """
    needs = frozenset[str]().union(*(own for own, _ in methods))
    # A gradient is taken at the state itself, which has to be there then.
    late = frozenset(name.removesuffix("_grad") for name in needs if name.endswith("_grad")).union(
        *(own if early is None else own - early.needs for own, early in methods)
    )
    return EarlyReads(tuple(early for _, early in methods if early is not None), needs - late)


def read_early(capture: "Capture", index: int) -> None:
    """Read of a block that has just run what methods read early, and free the states that are not read later."""
    captured = capture.blocks[index]
    if len(captured.calls) != 1:
        return
    device = next(iter(captured.states.values())).device.type
    with torch.no_grad(), without_functions(), own_dtypes(device):  # not intercepted
        layer = _passing_layer(capture, index)
        captured.early.update({early: _read(early, layer) for early in capture.early.reads})
    passing = capture.early.passing
    if "output_weight" in passing and captured.adding is not None:
        captured.adding.clear()  # hooks hold it until the pass ends
        captured.adding = None
    for name in passing - {"entering", "leaving"} if index == len(capture.blocks) - 1 else passing:
        captured.states.pop(name, None)


def _read(early: Early, layer: Layer) -> Any:  # noqa: ANN401
    """What is read, or why it cannot be: raised when it is asked for, as a pass with NaN in it is made again."""
    try:
        return early.read(layer)
    except VitrailError as error:
        return error


def check_read(capture: "Capture") -> None:
    """Raise if something could not be read of a block that has run, in a pass that is not made again."""
    for captured in capture.blocks:
        for found in captured.early.values():
            if isinstance(found, VitrailError):
                raise found


def _passing_layer(capture: "Capture", index: int) -> Layer:
    """A layer as the forward pass leaves it: no gradients, and nothing yet of which tokens are real or read."""
    block, captured = capture.body.blocks[index], capture.blocks[index]
    call, added = captured.calls[0], capture.added(captured)
    queries, keys = call_shape(call)
    if queries != keys:
        raise SeamError(unequal(index, queries, keys))
    states = {name: x for name, x in captured.states.items() if name in capture.keep}
    states = states if added is None else with_added(states, added)
    stream = stream_around(block, states, {})
    some = next(x for x in vars(stream).values() if x is not None)
    every = torch.ones(some.shape[:2], dtype=torch.bool, device=some.device)
    operands, weights = operands_of(call, some.shape[0]), weights_of(block, added, call, states=states)
    depth = len(capture.blocks)
    return Layer(index=index, depth=depth, valid=every, readout=every.float(), stream=stream, **operands, **weights)
