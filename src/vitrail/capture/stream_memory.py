"""Streams that were measured once are remembered, by all that decides them.

What decides: the model and its weights (`Remembered`), names and shapes of all arguments, and the values of arguments
that are no real numbers: the places of pictures in a text, grids, masks. Words of a model that is given texts alone
count by their shape. A model that draws random numbers, as ViLT does to order its patches, is measured in every call.
A pass whose attention results are cut is run in every call, because which tokens an answer is read from depends on the
answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.cut_pass import Seen, cut_pass
from vitrail.capture.shadow import Remembered, keep_saved, keeps_saved
from vitrail.capture.stream_checks import check_order, check_values, sample_of
from vitrail.capture.stream_origins import MASKS, WORDS, ShownStream, reported
from vitrail.capture.streams import Streams, measured
from vitrail.errors import SeamError
from vitrail.models.inputs import Inputs

TEXTS = frozenset({*WORDS, *MASKS.values()})


@dataclass(frozen=True, eq=False)
class StreamsOfPass:
    """The streams of a pass.

    Args:
        seen: the pass.
        samples: the sample of every token.
        shown: the streams that are reported.
    """

    seen: Seen
    streams: Streams
    samples: Tensor
    shown: list[ShownStream]


@dataclass(frozen=True, eq=False)
class _Tables:
    """What is kept of a measurement: tables of tokens, and no tensor of the pass.

    Args:
        shapes: of what each call gave.
        saves: whether the shadow had to be kept from recomputing anything.
    """

    streams: Streams
    samples: Tensor
    shown: list[ShownStream]
    shapes: list[tuple[int, ...]]
    saves: bool


_known: Remembered[list[_Tables | SeamError]] = Remembered(most=64)
"""One entry for each form: nothing before it is measured, then the tables or why there are none."""


@contextmanager
def measured_streams(model: nn.Module, inputs: Inputs, *, sums: bool = False) -> Iterator[StreamsOfPass]:
    """A pass of a shadow whose attention results are cut, and its streams, measured now or remembered.

    Args:
        sums: keep what is added to the residual streams, too.
    """
    kept = _known.get(model, _form(inputs), list)
    known = kept[0] if kept else None
    if isinstance(known, SeamError):
        raise type(known)(str(known))
    if known is not None and known.saves:
        keep_saved(model)

    def measure(seen: Seen) -> StreamsOfPass:
        found = _again(known, seen, inputs) if known is not None and not seen.by_chance else None
        return found or _measured(seen, inputs, kept)

    with cut_pass(model, inputs, measure, sums=sums) as found:
        if not kept and not found.seen.by_chance:
            kept.append(_released(found, saves=keeps_saved(model)))
        yield found


def _measured(seen: Seen, inputs: Inputs, kept: list[_Tables | SeamError]) -> StreamsOfPass:
    """The streams of a pass; a refusal is remembered."""
    kept.clear()
    try:
        streams = measured(seen)
        check_order(streams)
        check_values(streams)
        samples = sample_of(streams, inputs.batch, shared=inputs.shared)
        return StreamsOfPass(seen, streams, samples, reported(streams, inputs, samples))
    except SeamError as error:
        kept.append(type(error)(str(error)))
        raise


def _released(found: StreamsOfPass, *, saves: bool) -> _Tables:
    streams, nothing = found.streams, torch.empty(0)
    bare = Streams(
        streams.events,
        [replace(sequence, operand=nothing) for sequence in streams.sequences],
        [replace(place, tensor=nothing) for place in streams.places if place.result],
        Seen(),
        dict(streams.since),
        list(streams.assumed),
    )
    shapes = [tuple(one.output.shape) for one in found.seen.calls if one.output is not None]
    return _Tables(bare, found.samples, found.shown, shapes, saves)


def _again(known: _Tables, seen: Seen, inputs: Inputs) -> StreamsOfPass | None:
    """The streams as they were measured before; None where the calls of this pass are others."""
    outputs = [one.output for one in seen.calls if one.output is not None]
    if [tuple(x.shape) for x in outputs] != known.shapes:
        return None
    bare = known.streams
    places = [replace(place, tensor=x) for place, x in zip(bare.places, outputs, strict=True)]
    streams = Streams(bare.events, bare.sequences, places, seen, dict(bare.since), list(bare.assumed))
    return StreamsOfPass(seen, streams, known.samples, [_with_words(one, inputs) for one in known.shown])


def _with_words(shown: ShownStream, inputs: Inputs) -> ShownStream:
    """A stream with the words and the mask of other inputs of the same form."""
    if shown.given not in WORDS or shown.words is None:
        return shown
    ids, mask = (inputs.kwargs.get(name) for name in (shown.given, MASKS[shown.given]))
    ids = ids if isinstance(ids, Tensor) else inputs.args[0] if inputs.args else None
    assert isinstance(ids, Tensor)
    masked = isinstance(mask, Tensor) and mask.shape == ids.shape
    return replace(shown, words=ids.detach().cpu(), mask=mask.bool().cpu() if masked else None)  # pyright: ignore[reportOptionalMemberAccess]


def _form(inputs: Inputs) -> tuple[Any, ...]:
    """All of the inputs that decides the streams of a model."""
    named = {**dict(enumerate(inputs.args)), **inputs.kwargs}
    texts = set(inputs.kwargs) <= TEXTS and not inputs.args

    def value(name: int | str, x: object) -> object:
        if not isinstance(x, Tensor):
            return repr(x)
        if x.is_floating_point() and "mask" not in str(name):
            return None
        if texts and name in WORDS:
            return None
        return hash(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())

    shapes = tuple(
        (name, tuple(x.shape), x.dtype, value(name, x)) if isinstance(x, Tensor) else (name, value(name, x))
        for name, x in named.items()
    )
    return shapes, inputs.kind, inputs.batch, inputs.shared
