"""The contributions of a model's biases to its answer, by the rules of one pass.

A rule set that tells its operations to `note_bias` keeps a note of each operation that makes new channels or adds
something to its input. The backward pass leaves at each note the bias times the gradient that arrives there.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.graph_nodes import Node, node_of
from vitrail.capture.recording.layer import widen
from vitrail.relevance.lrp.operation import Operation, arguments

NORMS = frozenset({"layer_norm", "group_norm", "rms_norm", "rms_norm_module"})
MAPS = frozenset({"linear", "addmm", "linear_product", "right_product", "convolution", "linear_map", "einsum"})
"""Kinds of operations that make new channels of their input."""
NOTE = "vitrail_bias"
"""The key of a note in the metadata of a place in the graph."""
VIEWS = ("View", "UnsafeView", "ReshapeAlias")
"""How the names of graph nodes begin that put axes together."""
BY_ROW = ("Addmm", "Mm", "Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Add", "Mul", "Div", "NativeLayerNorm", "ToCopy",
          "NativeDropout", "Clamp", "GroupedMm", "_Overridden", "_Shared", "_Replaced")  # fmt: skip
"""The same of nodes that make each row of the same row of their first operand."""
NOTED = NORMS | MAPS | {"shift", "activation"}
CHANNELS_FIRST = frozenset({"convolution", "linear_map", "group_norm"})
"""Kinds of operations whose channels come after the samples."""


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """The two axes that a view has put into rows, and which of those rows were chosen; None for all in their order."""

    axes: tuple[int, int]
    index: Tensor | None = None

    def back(self, x: Tensor) -> Tensor:
        """Return numbers of rows by the two axes, those of a row that was chosen several times added."""
        if self.index is None:
            return x.view(self.axes)
        return x.new_zeros(self.axes[0] * self.axes[1]).index_add(0, self.index, x).view(self.axes)


@dataclass(eq=False)
class BiasNote:
    """An operation that makes new channels or adds something, as a pass met it.

    Args:
        kind: what kind of operation it is.
        where: the module that ran it.
        block: the index of the block that ran it, None outside of the blocks.
        tokens_first: whether it is known to have tokens before samples.
        rows: what its rows were made of, where it has rows and the graph tells; None otherwise.
        added: what it adds, by channel or by entry; None if nothing.
        brought: that times the gradient, summed over channels, of the last backward pass; None if none arrived.
    """

    kind: str
    where: str
    block: int | None
    tokens_first: bool
    rows: ChosenRows | None
    added: Tensor | float | None
    brought: Tensor | None = None

    def multiply(self, gradient: Tensor | None) -> None:
        """Keep the bias times a gradient: a hook of the operation's result, to which none may arrive."""
        if gradient is None:
            return
        with torch.no_grad():
            gradient, added = widen(gradient), self.added
            if self.kind in CHANNELS_FIRST:
                gradient = gradient.movedim(1, -1)
            if added is None:
                return
            if not isinstance(added, Tensor):
                self.brought = gradient.sum(dim=-1) * added
            elif added.ndim == 1 and gradient.ndim > 1:
                self.brought = gradient @ added.to(gradient.dtype)
            else:
                added = added.movedim(1, -1) if self.kind in CHANNELS_FIRST else added
                self.brought = (gradient * added).sum(dim=-1)


def note_bias(operation: Operation, out: object) -> None:
    """Keep a note of an operation, and let the backward pass leave there what its bias brings."""
    if not isinstance(out, Tensor) or not out.requires_grad:
        return
    added = added_by(operation)
    if added is None and operation.name not in NORMS | MAPS:
        return
    rows = None if added is None else rows_of(operation)
    note = BiasNote(operation.name, operation.where, operation.block, operation.tokens_first, rows, added)
    operation.note(note)
    node = node_of(out)
    if node is not None:
        node.metadata[NOTE] = note  # pyright: ignore[reportAttributeAccessIssue]  (no note may hold the graph)
    if added is not None:
        out.register_hook(note.multiply)


def added_by(operation: Operation) -> Tensor | float | None:
    """Return what an operation gives where its input is zero; None if that is nothing."""
    if operation.name == "activation":
        return value_at_zero(operation) or None
    if operation.name == "shift":
        return _summand(operation)
    if operation.name == "linear_map":
        return _of_linear_map(operation)
    if operation.name not in ("linear", "addmm", "convolution", "layer_norm", "group_norm"):
        return None
    given = arguments(operation.name, operation.args, operation.kwargs)
    if operation.name == "addmm":
        return given["input"].detach() * given.get("beta", 1)
    bias = given.get("bias")
    return None if bias is None else bias.detach()


def rows_of(operation: Operation) -> ChosenRows | None:
    """Return what the rows of an operation's input are made of, by the graph; None where it does not tell."""
    x = operation.active[0]
    node, index = (node_of(x) if x.ndim == 2 else None), None
    while node is not None:
        name, saved = node.name(), partial(getattr, node)  # pyright: ignore[reportAttributeAccessIssue]
        if name.startswith(VIEWS):
            sizes: list[int] = list(saved("_saved_self_sym_sizes"))
            if len(sizes) < 3 or (index is None and sizes[0] * sizes[1] != len(x)):
                return None
            return ChosenRows((sizes[0], sizes[1]), index)
        if name.startswith("IndexBackward"):
            chosen, *more = saved("_saved_indices")
            if more or chosen is None or chosen.ndim != 1:
                return None
            chosen = chosen.nonzero()[:, 0] if chosen.dtype is torch.bool else chosen
            index = chosen if index is None else chosen[index]
        elif not name.startswith(BY_ROW) and not (name.startswith("Slice") and saved("_saved_dim") != 0):
            return None
        before = (one for one, _ in saved("next_functions") if one is not None)
        node = next((one for one in before if not one.name().endswith("AccumulateGrad")), None)
    return None


def _summand(operation: Operation) -> Tensor | float | None:
    """Return the constant that is added to a state, in the state's own shape if it is a tensor."""
    (x,) = operation.active
    for other in operation.args[:2]:
        if isinstance(other, Tensor) and other is not x:
            return other.detach().broadcast_to(torch.broadcast_shapes(other.shape, x.shape))
        if isinstance(other, (int, float)):
            return float(other)
    return None


def value_at_zero(operation: Operation) -> float:
    """Return the value at zero of a function of single entries; zero where it is infinite or reads other tensors.

    It is computed on the CPU, so that no device has to be waited for.
    """
    if len(operation.active) != 1:
        return 0.0
    x = operation.active[0]
    with torch.no_grad(), suppress(RuntimeError, TypeError):
        found = operation.again({id(x): torch.zeros([1] * x.ndim, dtype=torch.float64)})
        value = float(found) if isinstance(found, Tensor) else 0.0
        return value if isfinite(value) else 0.0
    return 0.0


def _of_linear_map(operation: Operation) -> Tensor | None:
    """Return what a convolution or a batch norm gives where its input is zero; None for maps of several tensors."""
    if len(operation.active) != 1:
        return None
    x = operation.active[0]
    with torch.no_grad():
        found = operation.again({id(x): torch.zeros_like(x)})
    return found if isinstance(found, Tensor) and found.ndim > 1 else None


def notes_of(notes: Iterable[object]) -> list[BiasNote]:
    """Return the notes of biases among all that rules have kept."""
    return [note for note in notes if isinstance(note, BiasNote)]


def heads(logits: Tensor) -> set[BiasNote]:
    """Return the operations that give the logits, norms aside: the first that a walk back from there meets."""
    found, waiting, known = set[BiasNote](), [node_of(logits)], set[Node]()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        note = node.metadata.get(NOTE)
        if note is not None and note.kind not in NORMS:
            found.add(note)
        if note is None or note.kind not in NORMS | MAPS:
            waiting += [before for before, _ in node.next_functions]
    return found
