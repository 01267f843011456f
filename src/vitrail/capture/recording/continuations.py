"""The log-probability of tokens that a language model continued a text with, and the rows that predict them.

Logits are computed at these rows and nowhere else: at long contexts those of all rows take more than the model.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.capture.outputs import Output, Scalar
from vitrail.capture.seams import AttentionCall
from vitrail.capture.shadow import hooks
from vitrail.errors import InputError, TargetError
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import normalised
from vitrail.targets import SPAN_SCALARS, AnyTarget, Target


@dataclass(frozen=True)
class Sequences:
    """The ids a language model predicts one by one, and which of them are real."""

    ids: Int[Tensor, "b t"]
    real: Bool[Tensor, "b t"]
    decoder: bool = False


def sequences_of(inputs: Inputs) -> Sequences:
    """The sequence that is continued: the decoder's where there is one, else the text."""
    decoder = inputs.kwargs.get("decoder_input_ids")
    if isinstance(decoder, Tensor):
        mask = inputs.kwargs.get("decoder_attention_mask")
        return Sequences(decoder, torch.ones_like(decoder).bool() if mask is None else mask.bool(), decoder=True)
    ids = inputs.ids if inputs.ids is not None else inputs.kwargs.get("input_ids")
    if not isinstance(ids, Tensor):
        raise TargetError(
            "a continuation is made of token ids, but the inputs are "
            f"{'embeddings' if inputs.kind == 'text' else 'pictures'} alone. Pass input_ids."
        )
    if ids.is_floating_point():
        raise InputError(f"token ids are whole numbers, but input_ids are {ids.dtype}.")
    mask = inputs.attention_mask if inputs.ids is not None else inputs.kwargs.get("attention_mask")
    return Sequences(ids, torch.ones_like(ids).bool() if mask is None else mask.bool())


def spans(target: Target, real: Bool[Tensor, "b t"]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first column and the one after the last, for each sample, checked against its real tokens."""
    length = real.shape[1]
    end = (length - real.int().flip(1).argmax(dim=1)).tolist()
    columns = []
    for name, given in (("start", target.start), ("stop", target.stop)):
        each = end if given is None else [given] * len(end) if isinstance(given, int) else list(given)
        if len(each) != len(end):
            said = f"{len(each)} values of {name} were given for a batch of {len(end)}"
            raise TargetError(f"{said}. Give one, or one each.")
        columns.append(tuple(x if x >= 0 else after + x for x, after in zip(each, end, strict=True)))
    first, last = columns
    for sample, (start, stop, row) in enumerate(zip(first, last, real.tolist(), strict=True)):
        _check_span(sample, start, stop, row)
    return first, last


def _check_span(sample: int, start: int, stop: int, real: list[bool]) -> None:
    span, length = f"the continuation of sample {sample}, columns {start} to {stop - 1},", len(real)
    if start >= length:
        raise TargetError(f"start={start} of sample {sample} is outside the input, with columns 0 to {length - 1}.")
    if start >= stop:
        raise TargetError(f"{span} is empty: start={start} is not before stop={stop}.")
    if start < 0 or stop > length:
        raise TargetError(f"{span} is outside the input, whose columns are 0 to {length - 1}.")
    if not all(real[start:stop]):
        raise TargetError(f"{span} touches padding: the attention mask is 0 at column {real.index(False, start)}.")
    if start == 0 or not real[start - 1]:
        raise TargetError(
            f"{span} has no real token before it, so nothing predicts column {start}. Start one column later."
        )


def summed(
    logits: Float[Tensor, "m v"],
    ids: Int[Tensor, " m"],
    samples: Int[Tensor, " m"],
    batch: int,
    scalar: str = "log_probability",
) -> Float[Tensor, " b"]:
    """The sum of `log p(x_t | x_<t)`, or of the log-odds, over the tokens of each sample.

    Args:
        logits: of the rows that predict.
        samples: which sample each row belongs to.
        scalar: a name of `targets.SPAN_SCALARS`.
    """
    found = SPAN_SCALARS[scalar](logits, ids)
    return found.new_zeros(batch).index_add(0, samples, found)


def continued(output: Output, target: Target, inputs: Inputs, calls: Sequence[AttentionCall]) -> Scalar:
    """The scalar of a continuation, and the rows it is predicted at.

    Args:
        calls: the attention of the pass, which shows whether a row sees the token that it predicts.
    """
    sequences = sequences_of(inputs)
    ids, real = sequences.ids, sequences.real
    kept = output.rows
    rows = ids.shape[1] if kept is None else len(kept)
    # Hidden states of a model without a head have the shape of logits.
    if output.span or output.encodes or output.logits.ndim != 3 or output.logits.shape[1] != rows:
        what = "encodings" if output.encodes else "an output"
        raise TargetError(
            f"a continuation is explained by the logits of every next token, [b, t, vocabulary], but this model gives "
            f"{what} of shape {tuple(output.logits.shape)} for {ids.shape[1]} tokens. Load it with its language-model "
            "head, for example with AutoModelForCausalLM."
        )
    first, last = spans(target, real)
    places = torch.arange(real.shape[1], device=real.device)
    start, stop = (torch.tensor(x, device=real.device)[:, None] for x in (first, last))
    columns = (places >= start) & (places < stop)
    if not sequences.decoder and any(not call.causal and bool(_sees(call, columns).any()) for call in calls):
        raise TargetError(
            "this model is not causal: the row that predicts a token also attends to it, so there is no "
            "log p(x_t | x_<t). Explain a model of masked words with targets.logit(c, position=p)."
        )
    if int(ids[columns].max()) >= output.logits.shape[2]:
        raise InputError(
            f"token {int(ids[columns].max())} is not among the {output.logits.shape[2]} the model predicts. Is this "
            "its own tokenizer?"
        )

    def read(logits: Tensor, rows: Tensor) -> Tensor:
        samples, places = columns[rows].nonzero(as_tuple=True)
        # Another pass may have the logits of all rows.
        at = places - 1 if kept is None or logits.shape[1] == ids.shape[1] else torch.searchsorted(kept, places - 1)
        return summed(logits[samples, at], ids[rows][samples, places], samples, len(rows), target.scalar)

    scalar = read(output.wide, torch.arange(len(ids), device=ids.device))
    if not bool(scalar.detach().isfinite().all()):
        said = f"{target.scalar.replace('_', '-')} of the continuation is {scalar.detach().tolist()}"
        raise InputError(
            f"the {said}: the model excludes one of its tokens, or its logits are not finite there. Check the weights "
            "and their precision."
        )
    return Scalar(scalar, replace(target, start=first, stop=last), read, rows=normalised(columns.roll(-1, dims=1)))


def _sees(call: AttentionCall, columns: Bool[Tensor, "b t"]) -> Bool[Tensor, "m h"]:
    """Return True where the row before a column sees the column, in each head that has a map or mask of its own."""
    samples, places = columns.nonzero(as_tuple=True)
    table = call.weights if call.weights is not None else call.mask
    if table is None:
        return torch.ones(len(places), 1, dtype=torch.bool, device=places.device)
    if call.weights is not None and table.ndim == 3:  # heads folded into the batch
        table = table.unflatten(0, (columns.shape[0], -1))
    table = table.detach()[(None,) * (4 - table.ndim)]
    if table.shape[2] not in (1, columns.shape[1]):  # queries that are not the tokens: the walk looks at them itself
        return torch.zeros(len(places), 1, dtype=torch.bool, device=places.device)
    sample = torch.zeros_like(samples) if table.shape[0] == 1 else samples
    row = torch.zeros_like(places) if table.shape[2] == 1 else places - 1
    # Keys of no token, as prefix tuning adds them, stand first.
    found = table[sample, :, row, places + table.shape[3] - columns.shape[1]]
    if call.weights is not None:
        return found != 0
    return found if found.dtype is torch.bool else found > torch.finfo(found.dtype).min / 2


KEYWORD = "logits_to_keep"
ReadRows = Int[Tensor, " m"]


def rows_read(targets: Sequence[AnyTarget], inputs: Inputs) -> ReadRows | None:
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
def keeping(model: nn.Module, inputs: Inputs, rows: ReadRows) -> Iterator[Inputs]:
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
