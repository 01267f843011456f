"""The parts of the inputs that the tokens of a model with several streams come from, and the names of the streams."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vitrail.capture.seams.call import tensors_in
from vitrail.capture.structure.origins import box_labels, boxes
from vitrail.capture.structure.streams import Sequence, Streams, Transition
from vitrail.capture.structure.token_codes import MIXED, fed_singly, sources
from vitrail.errors import SeamError
from vitrail.models.inputs import Inputs
from vitrail.targets import Target, only

WORDS = ("input_ids", "decoder_input_ids")
SOUNDS = ("input_features", "input_values")
LEFT_OUT = (
    "the texts are no stream here: they belong to all pictures of the batch, and what one is worth for each of them is "
    "not known. Explain one picture at a time"
)


@dataclass(frozen=True, eq=False)
class ShownStream:
    """Tokens that are reported together."""

    name: str  # `image`, `text`, `audio`, `queries`, `encoder` or `decoder`, with a number where there are several
    kind: str  # `image` where the tokens are patches of a grid, else `text`
    tokens: Tensor  # the number of every token, `[b, n]`, -1 where a sample has none
    sequence: int  # that they belong to
    words: Tensor | None = None  # the token ids `[b, n]` they come from
    grid: tuple[int, int] | None = None  # rows and columns of patches
    given: str | None = None  # the name of the input they come from, None for learned tokens
    mask: Tensor | None = None  # which tokens are real, by the mask of the input
    parts: Tensor | None = None
    """Where the patches of all pictures stand in one row, the place `[b, n]` of each patch there, -1 for none."""
    pictures: Tensor | None = None
    """The number `[b]` of the picture of each sample among all that were given, -1 for none."""
    padding: tuple[int, ...] = ()  # the numbers that padding of the same text has in later sequences
    labels: tuple[str, ...] | None = None  # what each token shows of a signal
    learned: bool = False  # whether the tokens depend on nothing that was given


def text_rows(rows: int, batch: int, target: Target, *, compares: bool) -> slice | None:
    """Return the rows of several texts that belong to the samples of a batch: all, one, or None if not known.

    Args:
        compares: whether pictures are compared with texts, which belong to all of them. One picture then has the text
            of its class. Several have none: what a text is worth for each of them alone is not known.
    """
    if not compares:
        return slice(None) if rows == batch else None
    if batch > 1 or target.first is None or target.second is not None:
        return None
    return slice(only(target.first), only(target.first) + 1)


def own_texts(
    found: list[ShownStream], batch: int, target: Target, read: Tensor, *, compares: bool
) -> list[ShownStream]:
    """The streams with those texts that belong to the samples (`text_rows`, `one_of_each`); such texts come last.

    Args:
        read: which tokens the answer is read from.
    """
    kept, some = [], []
    for one in found:
        rows = slice(None) if one.words is None else text_rows(len(one.tokens), batch, target, compares=compares)
        part = rows != slice(None)
        asked = (read[one.tokens.clamp(min=0)] & (one.tokens >= 0)).any(dim=1)
        rows = one_of_each(asked, batch) if rows is None and not compares else rows
        if rows is not None:
            words, mask = (None if x is None else x[rows] for x in (one.words, one.mask))
            (some if part else kept).append(replace(one, tokens=one.tokens[rows], words=words, mask=mask))
    return [*kept, *some]


def one_of_each(asked: Tensor, batch: int) -> Tensor | None:
    """The one of several texts of each sample that the answer depends on; None where there is no such one."""
    each = asked.view(batch, -1) if len(asked) % batch == 0 else None
    if each is None or bool((each.sum(dim=1) != 1).any()):
        return None
    return torch.arange(batch, device=asked.device) * each.shape[1] + each.long().argmax(dim=1)


def reported(streams: Streams, inputs: Inputs, samples: Tensor) -> list[ShownStream]:
    """The streams that are shown, in the order in which the model reads them."""
    targets = {target for _, target in streams.since}
    found, done = _packed(streams, inputs, samples)
    for index, sequence in enumerate(streams.sequences):
        if index in done:
            continue
        if index in targets and not sequence.queries:
            found = _with_others_read(streams, index, sequence, inputs, samples, found)
            continue
        text = _text(streams, index, sequence, inputs)
        if not sequence.queries:  # tokens that are read and never ask: a text, states of an encoder, or pictures
            read = [] if text is None else [text]
            found += read or _states(streams, index, sequence) or _pictures(streams, index, sequence, samples)
            continue
        before = streams.known_until(frozenset({index}))
        same = [] if text is None else [one for one in found if one.given == text.given and one.sequence in before]
        if text is not None and same:  # further up its own stream: its relevance goes on to where it enters
            hidden = () if text.mask is None else text.tokens[~text.mask & (text.tokens >= 0)].tolist()
            found = [replace(x, padding=(*x.padding, *hidden)) if x is same[0] else x for x in found]
            text = None
        known = [] if text is None else [text]
        if index not in targets:
            whole = text is not None and text.tokens.shape == sequence.rows
            seen = [] if whole else _pictures(streams, index, sequence, samples)
            known += seen or _embedded(streams, index, sequence)
            signal = None if whole or seen else _signal(streams, index, sequence, inputs, samples)
            known = known if signal is None or len(known) > (text is not None) else [signal, *known]
            known = known or [_other(streams, index, sequence, inputs, samples)]
        found += known
    _check_whole(found)
    # The one query of an attention pool, of each picture or tile, stands for no token.
    learned = [one for one in found if one.name == "queries" and streams.sequences[one.sequence].rows[1] == 1]
    kept = [one for one in found if one not in learned] or found
    return _named(streams, kept)


def _with_others_read(
    streams: Streams, index: int, sequence: Sequence, inputs: Inputs, samples: Tensor, found: list[ShownStream]
) -> list[ShownStream]:
    """Add tokens that are read beside those that ask, as words or patches where the class token alone asks.

    What is read of those that ask is made of them, and they are shown in its place.
    """
    asking = _asking(streams, sequence)
    if bool((asking >= 0).all()):
        return found
    text = _text(streams, index, sequence, inputs)
    read = [text] if text is not None else _states(streams, index, sequence)
    read = read or _pictures(streams, index, sequence, samples)
    for one in read:
        behind = asking[(one.tokens - sequence.first).clamp(min=0)]
        if bool(((behind < 0) & (one.tokens >= 0)).any()):
            whole = replace(one, tokens=torch.where((behind >= 0) & (one.tokens >= 0), behind, one.tokens))
            found = [*(x for x in found if not _holds(whole, x)), whole]
    return found


def _asking(streams: Streams, sequence: Sequence) -> Tensor:
    """The token that asks behind each token of a sequence that is read; -1 for none."""
    asking, last = torch.full((sequence.count,), -1), sequence.first + sequence.count
    for event in streams.events:
        if isinstance(event, Transition):
            here = (event.target >= sequence.first) & (event.target < last)
            asking[event.target[here] - sequence.first] = event.source[here]
    return asking


def _holds(whole: ShownStream, part: ShownStream) -> bool:
    """Return True if all tokens of a stream are among those of another."""
    return bool(torch.isin(part.tokens[part.tokens >= 0], whole.tokens).all())


def _check_whole(found: list[ShownStream]) -> None:
    """Refuse a text whose words stand in several sequences, as where queries are taken some at a time."""
    parts = Counter(one.given for one in found if one.words is not None and bool((one.tokens < 0).any()))
    for name, many in parts.items():
        if many > 1:
            raise SeamError(
                f"the words of {name or 'a text'} stand in {many} sequences, each with a part of them, as where "
                "attention takes its queries some at a time, so no one map of them can be walked. Use a method that "
                "follows gradients to the embeddings, such as attn_lrp or integrated_gradients."
            )


def _states(streams: Streams, index: int, sequence: Sequence) -> list[ShownStream]:
    """Tokens that are read and never ask, given as vectors: what an encoder made of another input before."""
    for x in _floats(streams):
        fed = fed_singly(_rows(sequence), x, channels=-1) if x.ndim == 3 else None
        if fed is not None:
            tokens = torch.where(fed >= 0, fed + sequence.first, -1).cpu()
            return [ShownStream("encoder", "text", tokens, index)]
    return []


def _rows(operand: Sequence) -> list[tuple[Tensor, Tensor]]:
    return [(operand.operand, operand.layout.numbers(operand.operand))]


def _text(streams: Streams, index: int, sequence: Sequence, inputs: Inputs) -> ShownStream | None:
    """The stream of a text: every column of its token ids, with the row that it feeds."""
    looked_up = [(_given(ids, inputs), ids, vectors) for ids, vectors in reversed(streams.seen.embedded)]
    # What the caller gave comes first: positions that leave out padding (RoBERTa) look like words, too.
    for name, ids, vectors in sorted(looked_up, key=lambda one: one[0] is None):
        unknown = ids.ndim != 2 or ids.is_floating_point() or ids.shape[0] != inputs.batch or _counts(ids)
        if name is None and unknown:
            continue
        fed = fed_singly(_rows(sequence), vectors, channels=-1)
        if fed is None or fed.shape != ids.shape:
            continue
        fed = fed.cpu()
        if sequence.rows == tuple(ids.shape):  # other columns hold what no word feeds, such as parts of a picture
            own = torch.arange(sequence.count).view(sequence.rows)
            if not bool(((fed < 0) | (fed == own)).all()):
                continue
            fed = own
        tokens = torch.where(fed >= 0, fed + sequence.first, -1)
        mask = _mask_of(name, ids, inputs)
        label = "decoder" if name == "decoder_input_ids" else "text"
        return ShownStream(label, "text", tokens, index, words=ids.detach().cpu(), given=name, mask=mask)
    return None


def _mask_of(name: str | None, ids: Tensor, inputs: Inputs) -> Tensor | None:
    """Return which words are real by the mask that came with them.

    BART gives the given text, moved by one place, to its decoder: behind a text, its columns are padding there too.
    """
    moved = name is None and inputs.ids is not None and torch.equal(ids[:, 1:], inputs.ids[:, :-1])
    mask = inputs.kwargs.get("attention_mask" if moved else MASKS.get(name or "", ""))
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return None
    mask = mask.bool().cpu()
    return None if moved and bool((mask[:, 1:] & ~mask[:, :-1]).any()) else mask


MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}


def _given(ids: Tensor, inputs: Inputs) -> str | None:
    """The name of the input that token ids are; None where they are none of the texts that were given."""
    texts = [*((name, inputs.kwargs.get(name)) for name in WORDS), *(("input_ids", x) for x in inputs.args[:1])]
    given = ((name, x) for name, x in texts if isinstance(x, Tensor) and x.shape == ids.shape)
    return next((name for name, x in given if bool((x == ids).all())), None)


def _counts(ids: Tensor) -> bool:
    """Return True if whole numbers are positions or types of tokens, and no words."""
    steps = ids[:, 1:] - ids[:, :-1]
    return bool((steps == 1).all()) or bool((steps == 0).all())


def _pictures(streams: Streams, index: int, sequence: Sequence, samples: Tensor) -> list[ShownStream]:
    """The streams of pictures, one for each picture of a sample: by pixels, or by the last feature map."""
    pixels = next((x for x in _floats(streams) if x.ndim >= 4), None)
    if pixels is None:
        return []
    # Feature maps of whole pictures before those of pieces that were cut out of them.
    maps = sorted(reversed(streams.seen.cells), key=lambda x: x.shape[0] != pixels.shape[0])
    for place, channels in [(pixels, -3), *((x, axis) for x in maps for axis in (1, -1))]:
        (fed,) = sources(_rows(sequence), [place], channels=channels)
        if fed is not None and place is pixels:
            fed = _without_padding(fed, streams)
        grids = None if fed is None else _grids(fed.flatten(0, -3).cpu(), sequence, pixels=place is pixels)
        if grids is not None and _has_form_of(grids, pixels):
            return _by_picture(index, sequence, _whole_pictures(sequence, grids, pixels), samples, pixels)
    return []


def _without_padding(fed: Tensor, streams: Streams) -> Tensor:
    """The row that every pixel feeds; those of padding feed none, though ViLT makes some of them several tokens."""
    given = streams.seen.inputs
    mask = None if given is None else given.kwargs.get("pixel_mask")
    if not isinstance(mask, Tensor) or mask.shape != fed.shape:
        return fed
    return torch.where(mask.to(fed.device) == 0, -1, fed)


def _has_form_of(grids: Tensor, pixels: Tensor) -> bool:
    """Return True if cells are nearly square: else the axes of a tensor are tiles and tokens, not rows and columns."""
    high, wide = pixels.shape[-2] * grids.shape[2], pixels.shape[-1] * grids.shape[1]
    return max(high, wide) < 2 * min(high, wide)


def _whole_pictures(sequence: Sequence, grids: Tensor, pixels: Tensor) -> Tensor:
    """Feature maps of pieces that were cut out of pictures `[pieces, y, x]`, put together where the pieces were."""
    if pixels.ndim != 4 or len(grids) == len(pixels) or len(grids) % len(pixels):
        return grids
    piece = torch.zeros(sequence.count, dtype=torch.long)
    piece[grids.flatten()] = torch.arange(len(grids)).repeat_interleave(grids[0].numel())
    ((operand, numbers),) = _rows(sequence)
    fed = fed_singly([(operand, piece.to(numbers.device)[numbers])], pixels, channels=1)
    found = []
    for picture in () if fed is None else fed.cpu():
        box = boxes(picture[None], len(grids))
        if box is None or box.grid is None:
            return grids
        tiles = grids[list(box.index)].unflatten(0, box.grid)
        found.append(tiles.permute(0, 2, 1, 3).flatten(2).flatten(0, 1))
    return torch.stack(found) if found else grids


def _embedded(streams: Streams, index: int, sequence: Sequence) -> list[ShownStream]:
    """The streams of inputs `[b, n, d]` that are vectors already, such as patches in a row or features of regions."""
    given = streams.seen.inputs
    assert given is not None
    found: list[ShownStream] = []
    # Features before what is added to them, such as the boxes of regions.
    for name, x in sorted(given.kwargs.items(), key=lambda one: one[0] not in SEEN):
        if not isinstance(x, Tensor) or not x.requires_grad or x.ndim != 3 or x.shape[0] != given.batch:
            continue
        fed = fed_singly(_rows(sequence), x, channels=-1)
        if fed is None or bool((fed < 0).any()) or len(fed.unique()) != fed.numel():
            continue
        if any(bool(torch.isin(fed.cpu() + sequence.first, one.tokens).any()) for one in found):
            continue
        shapes, grid = given.kwargs.get("spatial_shapes"), None
        if isinstance(shapes, Tensor) and bool((shapes == shapes[0]).all()) and int(shapes[0].prod()) <= fed.shape[1]:
            grid = (int(shapes[0, 0]), int(shapes[0, 1]))
            fed = fed[:, : grid[0] * grid[1]]  # what follows is padding
        kind = "text" if grid is None else "image"
        label = SEEN.get(name, "text")
        found.append(ShownStream(label, kind, fed.cpu() + sequence.first, index, grid=grid, given=name))
    return found


SEEN = {
    **dict.fromkeys(("visual_embeds", "visual_feats", "image_patches", "pixel_values"), "image"),
    "input_features": "audio",
}


def _floats(streams: Streams) -> list[Tensor]:
    given = streams.seen.inputs
    assert given is not None
    return [x for x in tensors_in((given.args, given.kwargs)) if x.is_floating_point()]


def _grids(fed: Tensor, sequence: Sequence, *, pixels: bool) -> Tensor | None:
    """The row of every patch `[pictures, y, x]`, if each place of a feature map, or each box of pixels, is one row."""
    if bool((fed == MIXED).any()) or not bool((fed >= 0).any()):
        return None
    single = fed[fed >= 0]
    if len(single.unique()) == len(single):
        return fed if bool((fed >= 0).all()) else None
    if not pixels:
        return None
    found, patches = [], set()
    for picture in fed:
        box = boxes(picture[None], sequence.count)
        if box is None or box.grid is None:
            return None
        found.append(torch.tensor(box.index).view(box.grid))
        patches.add(box.patch)
    sizes = {tuple(grid.shape) for grid in found}
    if len(sizes) == 1:
        return torch.stack(found)
    if len(patches) > 1:
        return None
    high, wide = (max(size[axis] for size in sizes) for axis in (0, 1))  # padding stands below and to the right
    return torch.stack([F.pad(grid, (0, wide - grid.shape[1], 0, high - grid.shape[0]), value=-1) for grid in found])


def _by_picture(index: int, sequence: Sequence, grids: Tensor, samples: Tensor, pixels: Tensor) -> list[ShownStream]:
    """One stream for each picture of a sample; samples without one have no tokens there."""
    tokens = torch.where(grids < 0, -1, grids + sequence.first).flatten(1)
    owner = samples[tokens[:, 0]]
    if not bool(((samples[tokens] == owner[:, None]) | (tokens < 0)).all()):
        raise SeamError("the patches of one picture belong to several samples. Explain one sample at a time.")
    batch = int(samples.max()) + 1
    most = int(torch.bincount(owner, minlength=batch).max())
    every, numbers = torch.full((most, batch, tokens.shape[1]), -1), torch.full((most, batch), -1)
    seen = [0] * batch
    for number, (row, sample) in enumerate(zip(tokens, owner.tolist(), strict=True)):
        every[seen[sample], sample], numbers[seen[sample], sample] = row, number
        seen[sample] += 1
    grid, whole = (grids.shape[1], grids.shape[2]), len(grids) == pixels[..., 0, 0, 0].numel()
    return [
        ShownStream("image", "image", one, index, grid=grid, given="pixel_values", pictures=which if whole else None)
        for one, which in zip(every, numbers, strict=True)
    ]


def _packed(streams: Streams, inputs: Inputs, samples: Tensor) -> tuple[list[ShownStream], set[int]]:
    """Pictures of different sizes whose patches stand in one row, in blocks that are merged, and their sequences."""
    sizes, given = inputs.kwargs.get("image_grid_thw"), streams.seen.inputs
    patches = None if given is None else given.kwargs.get("pixel_values")
    if not isinstance(sizes, Tensor) or not isinstance(patches, Tensor) or patches.ndim != 2:
        return [], set()
    tokens, done = torch.full((len(patches),), -1), set()
    for index, sequence in enumerate(streams.sequences):
        fed = None if bool((tokens >= 0).all()) else fed_singly(_rows(sequence), patches, channels=-1)
        if fed is not None:
            tokens = torch.where(fed.cpu() >= 0, fed.cpu() + sequence.first, tokens)
            done.add(index)
    if bool((tokens < 0).any()) or bool((sizes[:, 0] != 1).any()) or int(sizes.prod(dim=1).sum()) != len(patches):
        return [], set()
    side = _merged(streams, tokens)
    found, start = [], 0
    for high, wide in sizes[:, 1:].tolist():
        blocks = torch.arange(start, start + high * wide).view(high // side, wide // side, side, side)
        places = blocks.permute(0, 2, 1, 3).reshape(-1)
        every = torch.full((int(samples.max()) + 1, high * wide), -1)
        parts = every.clone()
        sample = int(samples[tokens[places[0]]])
        every[sample], parts[sample] = tokens[places], places
        grid = (high, wide)
        found.append(ShownStream("image", "image", every, min(done), grid=grid, given="pixel_values", parts=parts))
        start += high * wide
    return _together(found), done


def _merged(streams: Streams, tokens: Tensor) -> int:
    """Return the number of patches along each axis that are merged into one token."""
    merges = [e for e in streams.events if isinstance(e, Transition) and bool(torch.isin(e.source, tokens).any())]
    return int((1 / float(merges[0].share.min())) ** 0.5 + 0.5) if merges else 1


def _together(found: list[ShownStream]) -> list[ShownStream]:
    """Pictures of one grid that belong to different samples, as one stream."""
    made: list[ShownStream] = []
    for one in found:
        for place, other in enumerate(made):
            free = (other.tokens >= 0).any(dim=1) & (one.tokens >= 0).any(dim=1)
            if other.grid == one.grid and not bool(free.any()):
                parts = None if one.parts is None or other.parts is None else torch.maximum(other.parts, one.parts)
                made[place] = replace(other, tokens=torch.maximum(other.tokens, one.tokens), parts=parts)
                break
        else:
            made.append(one)
    return made


def _signal(streams: Streams, index: int, sequence: Sequence, inputs: Inputs, samples: Tensor) -> ShownStream | None:
    """Return the tokens that real numbers feed, each with what it shows of them; None if unknown.

    The numbers are a table, a wave, a spectrum, a film, or tokens that are vectors already.
    """
    given = streams.seen.inputs
    if given is None or inputs.kind != "text" or inputs.ids is not None:
        return None
    x, each = given.shown, sequence.count // inputs.batch
    owner = samples[sequence.first : sequence.first + sequence.count]
    if not x.is_floating_point() or not torch.equal(owner, torch.arange(inputs.batch).repeat_interleave(each)):
        return None
    start = sequence.first + torch.arange(inputs.batch)[:, None] * each
    for channels in CHANNELS.get((x.ndim, inputs.signal), (None,)):
        (fed,) = sources(_rows(sequence), [x], channels=channels)
        found = None if fed is None else box_labels(fed, each)
        if found is not None:
            labels = None if channels == -1 else found[1]
            return ShownStream("text", "text", start + torch.tensor(found[0]), index, labels=labels)
    return None


CHANNELS = {(5, True): (2, 1), (3, False): (-1, 1)}
"""The axes along which one token may have all numbers, by the axes of the input and whether it is a signal."""


def _other(streams: Streams, index: int, sequence: Sequence, inputs: Inputs, samples: Tensor) -> ShownStream:
    """Tokens of which no more is known than their order: of a sound, of embeddings, or learned."""
    batch = int(samples.max()) + 1
    own = [sequence.tokens[samples[sequence.tokens] == sample] for sample in range(batch)]
    tokens = pad_sequence(own, batch_first=True, padding_value=-1)
    sound = next((name for name in SOUNDS if name in inputs.kwargs), None)
    if sound is not None and index == 0:
        return ShownStream("audio", "text", tokens, index, given=sound)
    given = any(isinstance(x, Tensor) and x.is_floating_point() for x in (*inputs.args, *inputs.kwargs.values()))
    embedded = given and inputs.kind == "text" and "input_ids" not in inputs.kwargs
    learned = not _depends(sequence.operand, _floats(streams))
    return ShownStream("text" if embedded else "queries", "text", tokens, index, given=None, learned=learned)


def _depends(x: Tensor, given: list[Tensor]) -> bool:
    """Return True if a tensor has a gradient at any of these."""
    places = [one for one in given if one.requires_grad]
    if not x.requires_grad or not places:
        return False
    found = torch.autograd.grad(x.sum(), places, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in found)


def _named(streams: Streams, found: list[ShownStream]) -> list[ShownStream]:
    """The streams by their names: encoder and decoder where one of two reads the other by attention."""
    if len(found) == 2 and found[0].sequence != found[1].sequence:
        first, second = found
        forth, back = _reads(streams, second, first), _reads(streams, first, second)
        if forth != back:
            first, second = (first, second) if forth else (second, first)
            return [replace(first, name="encoder"), replace(second, name="decoder")]
    names: dict[str, count] = {}
    made = []
    # The text that the user gave comes before others, such as a question of its own for a part of the model.
    for one in sorted(found, key=lambda one: one.name == "text" and one.given != "input_ids"):
        number = next(names.setdefault(one.name, count(1)))
        made.append(one if number == 1 else replace(one, name=f"{one.name}_{number}"))
    return made


def _reads(streams: Streams, asking: ShownStream, read: ShownStream) -> bool:
    """Return True if tokens of one stream attend to tokens of another one, or to what these are merged into."""
    of = streams.sequence_of
    merged = [i for i in range(len(streams.sequences)) if read.sequence in streams.known_until(frozenset({i}))]
    looked_at = torch.tensor([read.sequence, *(i for i in merged if i != asking.sequence)])
    asked = (event for event in streams.attentions if bool((of[event.queries] == asking.sequence).any()))
    return any(bool(torch.isin(of[event.keys], looked_at).any()) for event in asked)
