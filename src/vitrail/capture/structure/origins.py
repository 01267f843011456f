"""The part of the input that each token of the blocks comes from: a patch, a word, or none.

Class tokens, registers and soft prompts come from no part of the input. For audio, tables, spectra and video three
answers are tried, the most exact first:

1. each number of the input feeds one token, and the numbers of a token fill a box (tables, video, spectra in patches);
2. each place of a feature map before the blocks feeds one token (spectra in patches that overlap);
3. tokens follow one axis of the input in order (audio): seen by where the gradients of some tokens have their centre.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from vitrail.capture.structure.token_codes import MIXED, NOWHERE, State, in_graph, numbers_of_tokens, sources
from vitrail.models.inputs import Inputs

SAMPLES_DIFFER = "the tokens of different samples come from different places, or are mixed"


@dataclass(frozen=True)
class Origin:
    """The origin of the tokens of the blocks."""

    tokens: int  # how many the blocks work on
    index: tuple[int, ...]  # the token of each patch, row by row, or of each word of the text
    grid: tuple[int, int] | None = None  # how many patches there are from top to bottom and from left to right
    patch: tuple[int, int] | None = None  # the pixels of a patch along these axes, where no two patches share any
    measured: bool = True  # whether this was measured, or only counted
    labels: tuple[str, ...] | None = None  # what each of these tokens shows of a signal; None for pictures and texts

    @cached_property
    def prefix(self) -> int | None:
        """The number of tokens before the content, if all others come after it in order."""
        first = self.tokens - len(self.index)
        return first if self.index == tuple(range(first, self.tokens)) else None


@dataclass(frozen=True, eq=False)
class Arriving:
    """The tokens `[b, t, d]` or `[b, h, t, d]` that enter the first block, with the graph below them."""

    state: State
    batch_first: bool = True  # else their axes are `[t, b, d]`

    @property
    def shape(self) -> torch.Size:
        """Their shape, batch first."""
        found = self.state.shape
        return found if self.batch_first else torch.Size((found[1], found[0], *found[2:]))

    @property
    def rows(self) -> list[tuple[State, Tensor]]:
        """The tokens with their numbers."""
        return [(self.state, numbers_of_tokens(self.state.shape, batch_first=self.batch_first))]


def other_input(inputs: Inputs) -> Inputs:
    """An input of the same form: noise for a picture, the same words in another order for a text."""
    x = inputs.shown.detach()
    generator = torch.Generator().manual_seed(1)
    if inputs.kind == "image":
        noise = torch.randn(x.shape, generator=generator).to(x)
        return inputs.showing(noise * x.std() + x.mean())
    real = torch.ones(x.shape[:2]) if inputs.attention_mask is None else inputs.attention_mask
    moved = x.clone()
    for row, places in enumerate(real.to(x.device).bool()):  # padding stays where it is
        words = x[row, places]
        moved[row, places] = words[torch.randperm(len(words), generator=generator).to(x.device)]
    return replace(inputs.showing(moved), ids=None if inputs.ids is None else moved)


def origin_of(
    inputs: Inputs, stream: Arriving | None, beginnings: Sequence[Tensor | State], cells: list[Tensor]
) -> Origin | str:
    """Return the origin of the tokens of the first layer, or the reason why it is not known.

    Args:
        stream: the tokens that enter the first block.
        beginnings: the picture, or the word embeddings, that they come from.
        cells: feature maps `[b, c, y, x]` between the two.
    """
    if stream is None:
        return "no attention call was found"
    if len(stream.shape) not in (3, 4) or stream.shape[0] != inputs.batch:
        return f"the first block works on tokens of shape {tuple(stream.shape)} for {inputs.batch} samples"
    source = next(iter(beginnings), None)
    if inputs.signal:
        return _signal(stream, inputs, source, cells)
    return _patches(stream, source, cells) if inputs.kind == "image" else _text(stream, inputs, source)


def _signal(stream: Arriving, inputs: Inputs, source: Tensor | State | None, cells: list[Tensor]) -> Origin | str:
    """The tokens of audio, a table, a spectrum or video, with what each of them shows."""
    tokens, numbers = stream.shape[-2], stream.rows
    axes = FILM_CHANNELS if inputs.shown.ndim == 5 else (None,)  # else every number is a place of its own
    fed = [None if source is None else sources(numbers, [source], channels=axis)[0] for axis in axes]
    if source is None or fed[0] is None:
        return "the tokens do not depend on the input"
    boxes = next((box for x in fed if x is not None and (box := box_labels(x, tokens)) is not None), None)
    for cell in reversed(cells if boxes is None else []):
        places = sources(numbers, [cell], channels=1)[0] if boxes is None else None
        boxes = boxes if places is None else box_labels(places, tokens)
    if boxes is not None:
        return Origin(tokens, boxes[0], labels=boxes[1])
    if len(stream.shape) != 3:
        return "numbers of the input feed several tokens, and the blocks are not known"
    ordered = ordered_labels(stream, source, channels=axes[0])
    return ordered if isinstance(ordered, str) else Origin(tokens, ordered[0], measured=False, labels=ordered[1])


def _text(stream: Arriving, inputs: Inputs, source: Tensor | State | None) -> Origin | str:
    """The token of every word: measured where the table of word embeddings is found."""
    tokens, words = stream.shape[-2], inputs.shown.shape[1]
    found = None if source is None else sources(stream.rows, [source], channels=2)[0]
    if found is None:
        if tokens != words:
            return f"the blocks work on {tokens} tokens where the text has {words}"
        return Origin(tokens, tuple(range(tokens)), measured=False)
    if inputs.attention_mask is not None and tokens == words and found.shape == inputs.attention_mask.shape:
        # Some models multiply the embeddings of padding by zero: padding feeds nothing, and has no score either.
        own = torch.arange(found.numel(), device=found.device).view_as(found)
        hidden = (found == NOWHERE) & (inputs.attention_mask == 0).to(found.device)
        found = torch.where(hidden, own, found)
    return _in_samples(found, tokens, None)


def _in_samples(found: Tensor, tokens: int, grid: tuple[int, int] | None) -> Origin | str:
    """The origin, if every sample says the same and each place feeds one token of its own sample."""
    samples = torch.arange(found.shape[0], device=found.device)[:, None]
    local = torch.where(found >= 0, found - samples * tokens, found)
    if bool((found == MIXED).any()):
        return f"{int((found == MIXED).sum())} of {found.numel()} places of the input feed more than one token"
    if bool((found == NOWHERE).any()):
        return f"{int((found == NOWHERE).sum())} of {found.numel()} places of the input feed no token"
    if not bool((local == local[:1]).all()) or not bool(((local >= 0) & (local < tokens)).all()):
        return SAMPLES_DIFFER
    index = tuple(local[0].tolist())
    if len(set(index)) != len(index):
        return "several places of the input feed one token"
    return Origin(tokens, index, grid)


def _patches(stream: Arriving, source: Tensor | State | None, cells: list[Tensor]) -> Origin | str:
    """The token of every patch: by the pixels where each feeds one token, else by the last feature map."""
    tokens, numbers = stream.shape[-2], stream.rows
    pixels = None if source is None else sources(numbers, [source], channels=1)[0]
    if pixels is not None and (whole := boxes(pixels, tokens)) is not None:
        return whole
    for cell in reversed(cells):
        (found,) = sources(numbers, [cell], channels=1)
        if found is not None and not bool((found == MIXED).any()):
            return _in_samples(found.flatten(1), tokens, (found.shape[1], found.shape[2]))
    return "pixels feed several tokens, and no feature map before the blocks has one place for each token"


def boxes(pixels: Tensor, tokens: int) -> Origin | None:
    """The origin where tokens are rectangles of one size, in rows and columns without gaps; None where they are not."""
    if bool((pixels == MIXED).any()) or not bool((pixels >= 0).any()):
        return None
    samples = torch.arange(pixels.shape[0], device=pixels.device)[:, None, None]
    local = torch.where(pixels >= 0, pixels - samples * tokens, NOWHERE)
    if not bool((local == local[:1]).all()):
        return None
    picture = local[0].cpu()
    used = picture >= 0
    height, width = int(used.any(dim=1).sum()), int(used.any(dim=0).sum())
    inside = picture[:height, :width]
    if not bool((inside >= 0).all()):
        return None
    first = inside == inside[0, 0]
    tall, wide = int(first[:, 0].sum()), int(first[0].sum())
    grid = inside[::tall, ::wide]
    whole = grid.repeat_interleave(tall, dim=0)[:height].repeat_interleave(wide, dim=1)[:, :width]
    index = tuple(grid.flatten().tolist())
    if not torch.equal(whole, inside) or len(set(index)) != len(index):
        return None
    return Origin(tokens, index, (grid.shape[0], grid.shape[1]), (tall, wide))


FILM_CHANNELS = (2, 1)
"""Where films [b, f, c, y, x] and [b, c, f, y, x] have their colours."""
NAMES = {1: ("place",), 2: ("row", "column"), 3: ("frame", "row", "column")}
"""What the axes of a signal are called in labels, by how many it has."""
PROBED = 8
"""How many tokens are looked at where each has to be asked alone."""
EDGE = 4
"""How many tokens at each end are looked at for such that come from no input."""


def box_labels(found: Tensor, tokens: int) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """The tokens that come from the input and what each of them shows; None where tokens are no boxes.

    Args:
        found: for every number of the input, the number of its token, counted over all samples.
    """
    if bool((found < 0).any()):
        return None
    samples = torch.arange(len(found), device=found.device).view(-1, *[1] * (found.ndim - 1))
    local = (found - samples * tokens).cpu()
    if not bool((local == local[:1]).all()) or not bool(((local >= 0) & (local < tokens)).all()):
        return None
    names = NAMES.get(local.ndim - 1, tuple(f"axis {axis}" for axis in range(local.ndim - 1)))
    found_labels: dict[int, str] = {}
    for token in local[0].unique().tolist():
        places = (local[0] == token).nonzero()
        low, high = places.amin(dim=0), places.amax(dim=0)
        if len(places) != int((high - low + 1).prod()):
            return None
        sides = zip(names, low.tolist(), high.tolist(), strict=True)
        found_labels[token] = ", ".join(f"{name} {a}" if a == b else f"{name}s {a}-{b}" for name, a, b in sides)
    return tuple(found_labels), tuple(found_labels.values())


def ordered_labels(
    stream: Arriving, source: Tensor | State, *, channels: int | None
) -> tuple[tuple[int, ...], tuple[str, ...]] | str:
    """The tokens that come from the input and what each of them shows, where they follow one axis of it in order.

    Args:
        stream: the tokens, without heads.
        source: what they come from.
        channels: the axis of the source that one place has along; None where every number is a place.
    """
    tokens = stream.shape[1]
    edges = {*range(min(EDGE, tokens)), *range(max(0, tokens - EDGE), tokens)}
    empty = [token for token in sorted(edges) if _centres(stream, token, source, channels) is None]
    first = next(token for token in range(tokens + 1) if token not in empty)
    if any(token >= first for token in empty) or first == tokens:
        return f"tokens {empty} come from no part of the input, and do not stand before all others"
    spaced = torch.linspace(first, tokens - 1, min(PROBED, tokens - first)).round().int().tolist()
    sizes = [size for axis, size in enumerate(source.shape) if axis not in (0, channels)]
    for axis, length in enumerate(sizes):
        places = [found[axis] for token in spaced if (found := _centres(stream, token, source, channels)) is not None]
        if all(b > a for a, b in pairwise(places)):
            count = tokens - first
            ends = [round(length * i / count) for i in range(count + 1)]
            return tuple(range(first, tokens)), tuple(f"{a}-{max(a, b - 1)}" for a, b in pairwise(ends))
    return "tokens follow no axis of the input in order"


def _centres(stream: Arriving, token: int, source: Tensor | State, channels: int | None) -> list[float] | None:
    """Return the centre of a token's squared gradient along each axis of the source; None if there is no gradient."""
    given = stream.state
    if not given.requires_grad:
        return None
    batch, _, width = stream.shape
    seed = torch.zeros(stream.shape)
    seed[:, token] = torch.randn(batch, width, generator=torch.Generator().manual_seed(token))
    seed = (seed if stream.batch_first else seed.transpose(0, 1)).to(given.tensor)
    (gradient,) = torch.autograd.grad(in_graph(given), in_graph(source), seed, retain_graph=True, allow_unused=True)
    size = None if gradient is None else gradient.double().square()
    size = size if size is None or channels is None else size.sum(dim=channels)
    if size is None or not bool((size > 0).any()):
        return None
    share = size.sum(dim=0) / size.sum()
    along = [share.movedim(axis, 0).reshape(share.shape[axis], -1).sum(dim=1) for axis in range(share.ndim)]
    return [float((x * torch.arange(len(x), device=x.device)).sum()) for x in along]


def signal_kind(axes: int, labels: Sequence[str]) -> str | None:
    """Return the kind of signal of a batch with this many axes, by its token labels; None for other numbers of axes."""
    if axes == 2:
        return "table" if labels[0].startswith("place") else "wave"
    return {3: "spectrum", 5: "video"}.get(axes)
