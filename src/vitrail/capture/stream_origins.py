"""Which tokens of a model with several streams come from which part of its inputs, and what the streams are called."""

from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor

from vitrail.capture.coded_gradients import MIXED, sources
from vitrail.capture.origin import boxes
from vitrail.capture.streams import AttentionEvent, Sequence, Streams, Transition
from vitrail.errors import SeamError
from vitrail.models.inputs import Inputs

WORDS = ("input_ids", "decoder_input_ids")
SOUNDS = ("input_features", "input_values")


@dataclass(frozen=True, eq=False)
class Stream:
    """Tokens that are reported together.

    Args:
        name: `image`, `text`, `audio`, `queries`, `encoder` or `decoder`, with a number where there are several.
        kind: `image` where the tokens are patches of a grid, else `text`.
        tokens: the number of every token, `[b, n]`, -1 where a sample has none.
        sequence: the sequence that they belong to.
        words: the token ids `[b, n]` they come from.
        grid: rows and columns of patches.
        given: the name of the input they come from, None for learned tokens.
        mask: which tokens are real, by the mask of the input.
    """

    name: str
    kind: str
    tokens: Tensor
    sequence: int
    words: Tensor | None = None
    grid: tuple[int, int] | None = None
    given: str | None = None
    mask: Tensor | None = None


def sample_of(streams: Streams, batch: int) -> Tensor:
    """The sample of every token: by its row, or by the tokens that are made of it."""
    found = torch.full((streams.count,), -1)
    for sequence in streams.sequences:
        rows, positions = sequence.rows
        if rows % batch == 0:  # windows of one sample follow each other
            found[sequence.tokens] = torch.arange(batch).repeat_interleave(rows // batch * positions)
    for event in reversed(streams.events):
        if isinstance(event, Transition):
            unknown = found[event.source] < 0
            found[event.source[unknown]] = found[event.target[unknown]]
        elif bool((found[event.keys] < 0).any()):
            of_rows = found[event.queries].amax(dim=1, keepdim=True).expand_as(event.keys)
            found[event.keys] = torch.where(found[event.keys] < 0, of_rows, found[event.keys])
    if bool((found < 0).any()):
        raise SeamError(
            f"{int((found < 0).sum())} of {streams.count} tokens cannot be told apart by sample. Explain one sample at "
            "a time."
        )
    return found


def reported(streams: Streams, inputs: Inputs, samples: Tensor) -> list[Stream]:
    """The streams that are shown, in the order in which the model reads them."""
    found: list[Stream] = []
    targets = {target for _, target in streams.since}
    for index, sequence in enumerate(streams.sequences):
        if not sequence.queries:
            continue
        text = _text(streams, index, sequence, inputs, samples)
        if text is not None:
            found.append(text)
        elif index not in targets:
            found += _pictures(streams, index, sequence, inputs, samples) or [_other(index, sequence, inputs, samples)]
    learned = [one for one in found if one.name == "queries" and one.tokens.shape[1] == 1]
    kept = [one for one in found if one not in learned] or found
    return _named(streams, kept)


def _rows(operand: Sequence) -> list[tuple[Tensor, Tensor]]:
    return [(operand.operand, operand.layout.numbers(operand.operand))]


def _text(streams: Streams, index: int, sequence: Sequence, inputs: Inputs, samples: Tensor) -> Stream | None:
    """The stream of a text: every column of its token ids, with the row that it feeds."""
    for ids, vectors in reversed(streams.seen.embedded):
        name = next((n for n in WORDS if _same(ids, inputs.kwargs.get(n))), None)
        first = inputs.args[0] if inputs.args else None
        name = "input_ids" if name is None and _same(ids, first) else name
        if name is None and (ids.ndim != 2 or ids.shape[0] != inputs.batch or _counts(ids)):
            continue
        (fed,) = sources(_rows(sequence), [vectors], channels=-1)
        if fed is None or bool((fed == MIXED).any()) or fed.shape != ids.shape or not bool((fed >= 0).any()):
            continue
        fed = fed.cpu()
        if sequence.rows == tuple(ids.shape):  # other columns hold what no word feeds, such as parts of a picture
            own = torch.arange(sequence.count).view(sequence.rows)
            if not bool(((fed < 0) | (fed == own)).all()):
                continue
            fed = own
        tokens = torch.where(fed >= 0, fed + sequence.first, -1)
        mask = inputs.kwargs.get(MASKS.get(name or "", ""))
        mask = mask.bool().cpu() if isinstance(mask, Tensor) and mask.shape == ids.shape else None
        return Stream("text", "text", tokens, index, words=ids.detach().cpu(), given=name, mask=mask)
    return None


MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}


def _same(a: Tensor, b: object) -> bool:
    return isinstance(b, Tensor) and a.shape == b.shape and bool((a == b).all())


def _counts(ids: Tensor) -> bool:
    """Whether whole numbers are positions or types of tokens, and no words."""
    steps = ids[:, 1:] - ids[:, :-1]
    return bool((steps == 1).all()) or bool((steps == 0).all())


def _pictures(streams: Streams, index: int, sequence: Sequence, inputs: Inputs, samples: Tensor) -> list[Stream]:
    """The streams of pictures, one for each picture of a sample: by pixels, or by the last feature map."""
    pixels = next((x for x in _floats(streams) if x.ndim >= 4), None)
    packed = inputs.kwargs.get("image_grid_thw")
    if isinstance(packed, Tensor):
        return _packed(streams, index, sequence, packed, samples)
    if pixels is None:
        return []
    maps = [x for x in streams.seen.cells if x.ndim == 4]
    for place, channels in [(pixels, 1), *((x, axis) for x in reversed(maps) for axis in (1, -1))]:
        if place.ndim != 4:
            continue
        (fed,) = sources(_rows(sequence), [place], channels=channels)
        grids = None if fed is None else _grids(fed.cpu(), sequence)
        if grids is not None:
            return _by_picture(index, sequence, grids, samples)
    return []


def _floats(streams: Streams) -> list[Tensor]:
    given = streams.seen.inputs
    assert given is not None
    return [x for x in (*given.args, *given.kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]


def _grids(fed: Tensor, sequence: Sequence) -> Tensor | None:
    """The row of every patch `[pictures, y, x]`, if each place of a feature map, or each box of pixels, is one row."""
    if bool((fed == MIXED).any()) or not bool((fed >= 0).any()):
        return None
    single = fed[fed >= 0]
    if len(single.unique()) == len(single):
        return fed if bool((fed >= 0).all()) else None
    found = []
    for picture in fed:
        box = boxes(picture[None], sequence.count)
        if box is None or box.grid is None:
            return None
        found.append(torch.tensor(box.index).view(box.grid))
    return torch.stack(found)


def _by_picture(index: int, sequence: Sequence, grids: Tensor, samples: Tensor) -> list[Stream]:
    """One stream for each picture of a sample; samples without one have no tokens there."""
    tokens = grids.flatten(1) + sequence.first
    owner = samples[tokens[:, 0]]
    if not bool((samples[tokens] == owner[:, None]).all()):
        raise SeamError("the patches of one picture belong to several samples. Explain one sample at a time.")
    batch = int(samples.max()) + 1
    most = int(torch.bincount(owner, minlength=batch).max())
    every = torch.full((most, batch, tokens.shape[1]), -1)
    seen = [0] * batch
    for row, sample in zip(tokens, owner.tolist(), strict=True):
        every[seen[sample], sample] = row
        seen[sample] += 1
    grid = (grids.shape[1], grids.shape[2])
    return [Stream("image", "image", one, index, grid=grid, given="pixel_values") for one in every]


def _packed(streams: Streams, index: int, sequence: Sequence, packed: Tensor, samples: Tensor) -> list[Stream]:
    """Pictures of different sizes in one row, patches in blocks that are merged together."""
    merges = [
        e for e in streams.events if isinstance(e, Transition) and bool(torch.isin(e.source, sequence.tokens).any())
    ]
    parts = 1 if not merges else int(1 / float(merges[0].share.min()) + 0.5)
    side = int(parts**0.5 + 0.5)
    batch, start = int(samples.max()) + 1, sequence.first
    found = []
    for time, high, wide in packed.tolist():
        size = time * high * wide
        if time != 1 or start + size > sequence.first + sequence.count or high % side or wide % side:
            return []
        blocks = torch.arange(start, start + size).view(high // side, wide // side, side, side)
        row = blocks.permute(0, 2, 1, 3).reshape(-1)
        every = torch.full((batch, size), -1)
        every[int(samples[row[0]])] = row
        found.append(Stream("image", "image", every, index, grid=(high, wide), given="pixel_values"))
        start += size
    return _together(found)


def _together(found: list[Stream]) -> list[Stream]:
    """Pictures of one grid that belong to different samples, as one stream."""
    made: list[Stream] = []
    for one in found:
        for place, other in enumerate(made):
            free = (other.tokens >= 0).any(dim=1) & (one.tokens >= 0).any(dim=1)
            if other.grid == one.grid and not bool(free.any()):
                made[place] = replace(other, tokens=torch.maximum(other.tokens, one.tokens))
                break
        else:
            made.append(one)
    return made


def _other(index: int, sequence: Sequence, inputs: Inputs, samples: Tensor) -> Stream:
    """Tokens of which no more is known than their order: of a sound, of embeddings, or learned."""
    batch = int(samples.max()) + 1
    own = [sequence.tokens[samples[sequence.tokens] == sample] for sample in range(batch)]
    tokens = torch.full((batch, max(map(len, own))), -1)
    for row, found in zip(tokens, own, strict=True):
        row[: len(found)] = found
    if any(name in inputs.kwargs for name in SOUNDS) and index == 0:
        return Stream("audio", "text", tokens, index, given=next(n for n in SOUNDS if n in inputs.kwargs))
    given = any(isinstance(x, Tensor) and x.is_floating_point() for x in (*inputs.args, *inputs.kwargs.values()))
    embedded = given and inputs.kind == "text"
    return Stream("text" if embedded else "queries", "text", tokens, index, given=None)


def _named(streams: Streams, found: list[Stream]) -> list[Stream]:
    """The streams by their names: encoder and decoder where one of two reads the other by attention."""
    if len(found) == 2:
        first, second = found
        forth, back = _reads(streams, second, first), _reads(streams, first, second)
        if forth and not back:
            return [replace(first, name="encoder"), replace(second, name="decoder")]
    names: dict[str, count] = {}
    made = []
    for one in found:
        number = next(names.setdefault(one.name, count(1)))
        made.append(one if number == 1 else replace(one, name=f"{one.name}_{number}"))
    return made


def _reads(streams: Streams, asking: Stream, read: Stream) -> bool:
    """Whether tokens of one stream ask for tokens of another one."""
    of = streams.sequence_of
    return any(
        isinstance(event, AttentionEvent)
        and bool((of[event.queries] == asking.sequence).any())
        and bool((of[event.keys] == read.sequence).any())
        for event in streams.events
    )
