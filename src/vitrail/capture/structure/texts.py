"""Texts whose structure is measured on a part of them.

All tokens of a long one at once would take more memory than the explanation: their logits, and the graph of every
block.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.outputs import run_model
from vitrail.capture.references import SETTING
from vitrail.capture.seams.call import first_tensor, stream_of
from vitrail.capture.shadow import hooks
from vitrail.capture.structure.cache import LONGEST
from vitrail.capture.structure.origins import Origin
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.models.taking import every_module

PART = 256
"""How many tokens of a text are measured that is longer than `LONGEST`."""


def part_of_text(inputs: Inputs) -> Inputs | None:
    """Some tokens of a long text, none of them padding; None where it is short, or not all that the model is given."""
    length = inputs.shown.shape[1] if inputs.ids is not None and inputs.shown.ndim == 2 else 0
    tensors = [x for x in (*inputs.args, *inputs.kwargs.values()) if isinstance(x, Tensor)]
    if length <= LONGEST or any(x.ndim != 2 or x.shape[1] != length for x in tensors):
        return None
    mask = inputs.attention_mask
    cuts = (slice(-PART, None), slice(None, PART))
    cut = next((cut for cut in cuts if mask is None or bool(mask[:, cut].all())), None)
    if cut is None:
        return None

    def part(x: Any) -> Any:  # noqa: ANN401
        return x[:, cut] if isinstance(x, Tensor) else x

    kwargs = {name: part(x) for name, x in inputs.kwargs.items()}
    args = tuple(map(part, inputs.args))
    return replace(inputs, args=args, kwargs=kwargs, ids=part(inputs.ids), attention_mask=part(mask), tokens=None)


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[list[str]]:
    """Undo what modules change of themselves; gives the names of settings and modules that were changed, at the end.

    BigBird switches to another attention on a short text, and stays with it.
    """
    changed: list[str] = []
    tables: list[dict[str, Any]] = [
        table for module in every_module(model) for table in (vars(module), module._modules, module._buffers)
    ]
    held = [(table, dict(table)) for table in tables]
    try:
        yield changed
    finally:
        for table, before in held:
            other = [name for name in {**before, **table} if table.get(name, held) is not before.get(name, held)]
            changed += [name for name in other if isinstance(before.get(name, table.get(name)), (*SETTING, nn.Module))]
            if other:
                table.clear()
                table.update(before)


def for_length(origin: Origin, part: int, length: int) -> Origin | None:
    """The origin of the tokens of the whole text; None if the tokens around its part are not in order."""
    before = origin.index[0]
    if origin.index != tuple(range(before, before + part)):
        return None
    return replace(origin, tokens=origin.tokens - part + length, index=tuple(range(before, before + length)))


def untouched_borders(model: nn.Module, inputs: Inputs, body: Body) -> tuple[bool, ...]:
    """For each block in the order in which they run, whether it is given what the one before it gave."""
    found: list[bool] = []
    last: list[Tensor] = []

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        stream = stream_of(args, kwargs)
        found.append(not last or (last[0].shape == stream.shape and torch.equal(last[0], stream)))

    def after(module: nn.Module, args: tuple, out: object) -> None:
        last[:] = [first_tensor(out)]

    handles = []
    for block in body.blocks:
        handles.append(block.module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(block.module.register_forward_hook(after))
    with hooks(handles):
        run_model(model, inputs)
    return tuple(found)
