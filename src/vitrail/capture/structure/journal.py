"""A journal of what a pass did to tokens outside its graph: the functions that ran, and what they moved rows by.

A pass without gradients, under rules, or of frozen weights has no graph that a signature could be read off. Its
functions are seen by the mode that intercepts attention. Two passes with the same journal did the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from types import GetSetDescriptorType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.torch_private import current_transform, set_gradients

BY_INDEX = frozenset(
    getattr(place, name)
    for place in (torch, Tensor)
    for name in (
        "__getitem__", "__setitem__", "gather", "index_select", "take_along_dim", "take", "index_add", "index_add_",
        "index_copy", "index_copy_", "index_put", "index_put_", "index_fill", "index_fill_", "scatter", "scatter_",
        "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "masked_select", "masked_scatter",
        "masked_scatter_", "repeat_interleave", "index_reduce", "index_reduce_", "put", "put_",
    )
    if hasattr(place, name)
)  # fmt: skip
"""Functions that move rows of their first argument by tensors of whole numbers."""
BY_NUMBER = frozenset(
    getattr(place, name)
    for place in (torch, Tensor)
    for name in (
        "flip", "fliplr", "flipud", "roll", "rot90", "permute", "transpose", "swapaxes", "movedim", "narrow", "select",
        "split", "chunk", "tensor_split", "unbind", "cat", "stack", "unfold", "as_strided", "view", "reshape",
        "flatten", "unflatten", "squeeze", "unsqueeze", "channel_shuffle", "slice_scatter", "select_scatter", "repeat",
        "tile",
    )
    if hasattr(place, name)
) | {F.pad, F.pixel_shuffle, F.pixel_unshuffle}  # fmt: skip
"""Functions that move rows by numbers."""
ENTRYWISE = frozenset({torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__})
PRODUCTS = ENTRYWISE | {torch.matmul, torch.bmm, torch.mm, torch.einsum, Tensor.matmul, Tensor.bmm, Tensor.mm,
                        Tensor.__matmul__, torch.baddbmm, torch.addmm, Tensor.baddbmm, Tensor.addmm}  # fmt: skip
JOINS = frozenset({torch.cat, torch.stack, torch.concat, torch.hstack, torch.vstack})
CHOICES = frozenset({torch.where, Tensor.where})
ALONG = frozenset(
    getattr(place, name)
    for place in (torch, Tensor)
    for name in ("flip", "flipud", "roll", "rot90", "gather", "index_select", "take_along_dim", "take")
    if hasattr(place, name)
)
"""Functions that put rows in another order."""
CONVERSIONS = frozenset({
    Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type, Tensor.type_as,
})  # fmt: skip
"""Functions that make numbers that close a way of yes and no."""
GATES = frozenset(
    getattr(place, name)
    for place in (torch, Tensor)
    for name in (
        "mul", "__mul__", "__rmul__", "div", "__truediv__", "true_divide", "lerp", "addcmul", "masked_fill", "add",
        "__add__", "sub", "__sub__",
    )
    if hasattr(place, name)
) | CONVERSIONS | CHOICES  # fmt: skip
"""Functions that may close the way of rows by yes and no, or by a number."""
READING = [
    found.__get__
    for name in dir(Tensor)
    if isinstance(found := vars(torch._C.TensorBase).get(name), GetSetDescriptorType)
]
"""What reads an attribute of a tensor."""
OWN = frozenset({
    Tensor.detach, Tensor.clone, Tensor.requires_grad_, Tensor.register_hook, Tensor.dim, Tensor.size,
    Tensor.is_inference, set_gradients,
})  # fmt: skip
"""Functions that hooks of a pass call themselves, and that move nothing."""
UNNOTED = OWN.union(READING)
PLAIN = frozenset({int, float, str, bool, type(None), type(Ellipsis)})
"""Types of values that stand for themselves in a journal."""
SMALL = 1 << 20
"""How many entries a matrix has at most that is looked at for being a permutation."""


LENGTH = "words"
"""Stands for the number of words in the journal of a text, so that texts of other lengths may have the same one."""


class Journal:
    """The functions of one pass, with what they moved rows by.

    Args:
        ids: the token ids that the model is given.
        length: the number of words, where it is left out of the notes.
    """

    def __init__(self, ids: Tensor | None, length: int | None = None) -> None:
        self.ids, self.length = ids, length
        self.notes: list[object] = []
        self.gates: list[object] = []  # numbers and tensors, which are looked at where rows were moved
        self.moved = False  # whether rows were put in another order: then gates choose between those and others
        self.closed = False

    def note(self, func: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]) -> None:
        """Keep that a function runs."""
        if func in UNNOTED:
            return
        self.notes.append(func)
        moves = MOVES.get(func)
        if self.closed or (moves is None and func not in GATES and func is not F.embedding):  # nearly all end here
            return
        if current_transform() is not None:  # inside torch.vmap no number can be read: no other pass is like it
            self.notes.append(object())
            return
        if func in GATES:
            self.gates += _gates(func, args, kwargs)
        if func in ALONG or (func is Tensor.__getitem__ and _is_part(args)):
            self.moved = True
        found = self._rows_asked(args) if func is F.embedding else moves(args, kwargs) if moves is not None else ()
        length = self.length
        for x in found:
            self.notes.append(_without_length(x, length) if length is not None and type(x) in (int, tuple) else x)

    def close(self) -> None:
        """Keep the functions alone from here on: which tokens an answer reads is measured in every call."""
        self.closed = True

    @property
    def key(self) -> tuple[object, ...]:
        """All notes, as one key."""
        return (*self.notes, *(map(_plain, self.gates) if self.moved else ()))

    def _rows_asked(self, args: tuple) -> list[object]:
        """Return which rows of a table of embeddings are asked for."""
        asked = self._is_asked(args[0])
        return [asked] if asked or isinstance(args[1], nn.Parameter) else [asked, _content(args[0])]

    def _is_asked(self, asked: object) -> bool:
        """Return True if a table of embeddings is asked for the token ids that the model is given."""
        ids = self.ids
        if not isinstance(asked, Tensor) or ids is None or asked.shape[-1:] != ids.shape[-1:]:
            return False
        return asked is ids or (asked.numel() == ids.numel() and torch.equal(asked.reshape(ids.shape).to(ids), ids))


def _is_part(args: tuple) -> bool:
    """Return True if a part of rows of numbers is taken, other than along the last axis alone."""
    if not args[0].is_floating_point() or args[0].ndim < 3:
        return False
    places = args[1] if isinstance(args[1], tuple) else (args[1],)
    return Ellipsis not in [x for x in places if not isinstance(x, Tensor)] and any(
        x != slice(None) if isinstance(x, slice) else x is not None for x in places[: args[0].ndim - 1]
    )


def _gates(func: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return what may close the way of rows: answers of yes and no that become numbers, and numbers."""
    if func in CONVERSIONS:
        yes_or_no = not args[0].is_floating_point() and args[0].ndim > 0 and args[0].numel() <= SMALL
        return [args[0]] if yes_or_no else []
    found: list[object] = []
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            if not x.is_floating_point() and x.ndim > 0 and x.numel() <= SMALL:
                found.append(x)
        elif isinstance(x, (int, float)):
            found.append(x)
    return found


def _without_length(x: object, length: int) -> object:
    """Return a note in which multiples of the number of words are written as such."""
    if type(x) is int:
        return (LENGTH, x // length) if x and x % length == 0 else x
    return tuple([_without_length(one, length) for one in x]) if isinstance(x, tuple) else x


def _places(given: object) -> list[object]:
    """Return where the parts of what is joined lie in memory: parts of one tensor may be joined in another order."""
    parts = given if isinstance(given, (tuple, list)) else ()
    return [(x.storage_offset(), tuple(x.shape), x.stride()) for x in parts if isinstance(x, Tensor)]


def _numbers(given: Iterable[object]) -> list[object]:
    """Return the numbers among arguments."""
    found: list[object] = []
    for x in given:
        if type(x) in PLAIN:
            found.append(x)
        elif isinstance(x, (tuple, list)):
            found += ["(", *_numbers(x), ")"]
        elif not isinstance(x, Tensor):
            found.append(_plain(x))
    return found


def _values(given: Iterable[object]) -> list[object]:
    """Return the numbers among arguments, and the content of tensors of whole numbers."""
    found: list[object] = []
    for x in given:
        if isinstance(x, (tuple, list)):
            found += ["(", *_values(x), ")"]
        elif not isinstance(x, Tensor):
            found.append(_plain(x))
        elif not x.is_floating_point():
            found.append(_content(x))
    return found


def _plain(x: object) -> object:
    """Return a value that can be compared: bounds of slices are numbers, whatever else stands for itself."""
    if isinstance(x, slice):
        return ("slice", _plain(x.start), _plain(x.stop), _plain(x.step))
    if isinstance(x, Tensor):
        return _content(x)
    return x if isinstance(x, (int, float, str)) or type(x) in PLAIN else repr(x)


def _content(x: Tensor) -> tuple[object, ...]:
    """Return the shape of a tensor and a hash of its numbers, or the first of them where they count up in order."""
    own = x.detach()[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())]
    if own.dtype is torch.int64 and own.ndim and own.numel() > 1 and own.shape[-1] == own.numel():
        first = int(own.flatten()[0])
        if torch.equal(own.flatten(), torch.arange(first, first + own.numel(), device=own.device)):
            return x.shape, "in order", first
    return x.shape, hash(own.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def _is_outer(given: Sequence[Tensor]) -> bool:
    """Return True if a product of entries has more of them than each factor: its sum may put rows together."""
    if len(given) != 2 or given[0].shape == given[1].shape:
        return False
    most = max(x.numel() for x in given)
    return prod(map(max, zip_longest(*(x.shape[::-1] for x in given), fillvalue=1))) > most


def _is_selection(x: Tensor) -> bool:
    """Return True if a tensor holds zeros and ones alone, as a matrix does that picks rows."""
    if isinstance(x, nn.Parameter) or x.ndim < 2 or not 0 < x.numel() <= SMALL:
        return False  # what was measured of a model holds for the weights that it had then
    last = x.detach()[(-1,) * x.ndim].item()  # of a causal map the first rows are zeros and ones, the last is not
    return last in (0, 1) and bool(((x == 0) | (x == 1)).all())


def _numbers_after(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return the numbers that a function moves the rows of its first argument by."""
    return _numbers([*args[1:], *kwargs.values()])


def _indices_after(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return the numbers and the indices that a function moves the rows of its first argument by."""
    return _values([*args[1:], *kwargs.values()])


def _indices(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return the numbers and the indices among all arguments."""
    return _values([*args, *kwargs.values()])


def _grid(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return the places that a picture is sampled at."""
    return [_content(x) for x in (*args[1:], *kwargs.values()) if isinstance(x, Tensor)]


def _joined(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return the order of what is joined, and the axis."""
    return [*_places(args[0] if args else kwargs.get("tensors")), *_numbers_after(args, kwargs)]


def _chosen(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return where rows of one tensor are taken and where those of another."""
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    rows = sum(x.is_floating_point() and x.ndim > 1 for x in given)
    return _values(given) if rows > 1 else []


def _selections(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return the factors that pick rows."""
    return [_content(x) for x in args if isinstance(x, Tensor) and _is_selection(x)]


def _selections_in_parts(args: tuple, kwargs: Mapping[str, Any]) -> list[object]:
    """Return the factors that pick rows where the product is summed later."""
    return _selections(args, kwargs) if _is_outer([x for x in args if isinstance(x, Tensor)]) else []


MOVES: dict[Callable[..., Any], Callable[[tuple, Mapping[str, Any]], list[object]]] = {
    **dict.fromkeys(BY_INDEX, _indices_after),
    F.one_hot: _indices,
    **dict.fromkeys(BY_NUMBER, _numbers_after),
    **dict.fromkeys(JOINS, _joined),
    **dict.fromkeys(PRODUCTS, _selections),
    **dict.fromkeys(ENTRYWISE, _selections_in_parts),
    **dict.fromkeys(CHOICES, _chosen),
    F.grid_sample: _grid,
}
"""What a function moves rows by, read off its arguments."""
