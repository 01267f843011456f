"""Logits at the rows that a continuation reads and nowhere else: at long contexts all rows take more than the model."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from vitrail.capture.continuations import sequences_of, spans
from vitrail.capture.shadow import hooks
from vitrail.models.inputs import Inputs
from vitrail.targets import AnyTarget, Target

KEYWORD = "logits_to_keep"
Rows = Int[Tensor, " m"]


def rows_read(targets: Sequence[AnyTarget], inputs: Inputs) -> Rows | None:
    """The rows whose logits these targets read, in order; None where only the logits themselves can tell."""
    if not all(isinstance(target, Target) and target.name == "continuation" for target in targets):
        return None
    if inputs.ids is None or "decoder_input_ids" in inputs.kwargs or KEYWORD in inputs.kwargs:
        return None
    real = sequences_of(inputs).real
    read = torch.zeros(real.shape[1], dtype=torch.bool)
    for target in targets:
        assert isinstance(target, Target)
        for first, last in zip(*spans(target, real), strict=True):
            read[first - 1 : last - 1] = True
    return read.nonzero()[:, 0].to(real.device)


@contextmanager
def keeping(model: nn.Module, inputs: Inputs, rows: Rows) -> Iterator[Inputs]:
    """The inputs of a call in which the model's head is applied to these rows alone, where that can be arranged.

    Models of transformers take the rows as an argument. Elsewhere the head is given these rows of what it reads.
    """
    if KEYWORD in inspect.signature(model.forward).parameters:
        yield replace(inputs, kwargs={**inputs.kwargs, KEYWORD: rows})
    else:
        length = inputs.shown.shape[1]
        head = _head(model)

        def cut(module: nn.Module, args: tuple) -> tuple | None:
            fits = bool(args) and isinstance(args[0], Tensor) and args[0].ndim == 3 and args[0].shape[1] == length
            return (args[0][:, rows.to(args[0].device)], *args[1:]) if fits else None

        with hooks([] if head is None else [head.register_forward_pre_hook(cut)]):
            yield inputs


def _head(model: nn.Module) -> nn.Module | None:
    """The module that makes logits of the last block's tokens; None if the model does not name it."""
    get: Any = getattr(model, "get_output_embeddings", None)
    try:
        head = get() if callable(get) else None
    except (AttributeError, NotImplementedError):
        return None
    return head if isinstance(head, nn.Module) else None
