"""Where the tokens of audio, tables, spectra and video come from.

Three answers are tried, the most exact first:

1. each number of the input feeds one token, and the numbers of a token fill a box (tables, video, spectra in patches);
2. each place of a feature map before the blocks feeds one token (spectra in patches that overlap);
3. tokens follow one axis of the input in order (audio): seen by where the gradients of some tokens have their centre.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

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
    index, labels = [], []
    for token in local[0].unique().tolist():
        places = (local[0] == token).nonzero()
        low, high = places.amin(dim=0), places.amax(dim=0)
        if len(places) != int((high - low + 1).prod()):
            return None
        index.append(token)
        labels.append(_label(low.tolist(), high.tolist()))
    return tuple(index), tuple(labels)


def _label(low: Sequence[int], high: Sequence[int]) -> str:
    names = NAMES.get(len(low), tuple(f"axis {axis}" for axis in range(len(low))))
    parts = [
        f"{name} {first}" if first == last else f"{name}s {first}-{last}"
        for name, first, last in zip(names, low, high, strict=True)
    ]
    return ", ".join(parts)


def ordered_labels(stream: Tensor, source: Tensor, *, channels: int) -> tuple[tuple[int, ...], tuple[str, ...]] | str:
    """The tokens that come from the input and what each of them shows, where they follow one axis of it in order.

    Args:
        stream: the tokens `[b, t, d]` with the graph that leads to the source.
        source: what they come from.
        channels: the axis of the source that one place has along.
    """
    tokens = stream.shape[1]
    edges = {*range(min(EDGE, tokens)), *range(max(0, tokens - EDGE), tokens)}
    empty = [token for token in sorted(edges) if _centres(stream, token, source, channels) is None]
    first = next(token for token in range(tokens + 1) if token not in empty)
    if any(token >= first for token in empty) or first == tokens:
        return f"tokens {empty} come from no part of the input, and do not stand before all others"
    spaced = torch.linspace(first, tokens - 1, min(PROBED, tokens - first)).round().int().tolist()
    for axis in range(source.ndim - 2):
        places = [found[axis] for token in spaced if (found := _centres(stream, token, source, channels)) is not None]
        if all(b > a for a, b in pairwise(places)):
            length = source.movedim(channels, -1).shape[axis + 1]
            return tuple(range(first, tokens)), _spans(length, tokens - first)
    return "tokens follow no axis of the input in order"


def _centres(stream: Tensor, token: int, source: Tensor, channels: int) -> list[float] | None:
    """Where along each axis of the source the squared gradient of a token has its centre; None where it has none."""
    some = stream[:, token]
    seed = torch.randn(some.shape, generator=torch.Generator().manual_seed(token)).to(some)
    (gradient,) = torch.autograd.grad(some, source, seed, retain_graph=True, allow_unused=True)
    size = None if gradient is None else gradient.double().square().sum(dim=channels)
    if size is None or not bool((size > 0).any()):
        return None
    share = size.sum(dim=0) / size.sum()
    along = [share.movedim(axis, 0).reshape(share.shape[axis], -1).sum(dim=1) for axis in range(share.ndim)]
    return [float((x * torch.arange(len(x), device=x.device)).sum()) for x in along]


def _spans(length: int, count: int) -> tuple[str, ...]:
    ends = [round(length * i / count) for i in range(count + 1)]
    return tuple(f"{a}-{max(a, b - 1)}" for a, b in pairwise(ends))


def signal_kind(axes: int, labels: Sequence[str]) -> str | None:
    """What kind of signal an input with this many axes is; None where no picture is known for it.

    Args:
        axes: those of the whole batch.
        labels: of the tokens.
    """
    if axes == 2:
        return "table" if labels[0].startswith("place") else "wave"
    return {3: "spectrum", 5: "video"}.get(axes)
