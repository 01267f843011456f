"""The tokens of several sequences that an answer reads, measured in the pass that structure is read off."""

import torch
from torch import Tensor

from vitrail.capture.outputs import UNMOVED
from vitrail.capture.structure.streams import AttentionEvent, Streams
from vitrail.errors import SeamError, TargetError


def readout(streams: Streams, samples: Tensor, scalar: Tensor, *, by_norm: bool) -> Tensor:
    """The weight of every token that a scalar is read from, in the pass whose attention results are cut.

    Tokens are read where the scalar has a gradient. A sequence that another one which is read is made of is not read
    itself. The tokens of one sequence and one sample share the weight of one.

    Args:
        samples: the sample of every token.
        by_norm: share the weight by the norm of the gradient at the last attention of each token, and not equally.
    """
    weights, at_last = _direct_weights(streams, scalar)
    read = weights > 0
    below = streams.known_until(frozenset(streams.sequence_of[read].tolist()))
    direct = read & ~torch.isin(streams.sequence_of, torch.tensor(list(below), dtype=torch.long))
    read = direct if bool(direct.any()) else read
    if bool((early := read & ~at_last).any()):
        raise SeamError(
            f"the answer reads {int(early.sum())} of {streams.count} tokens by a connection that leaves out later "
            "attention calls on them, so a walk that starts at the last of these would be wrong. Use a gradient "
            "method, such as integrated_gradients."
        )
    return shared_among(streams, samples, read, weights if by_norm else None)


def _direct_weights(streams: Streams, scalar: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm of the gradient at the last result of each token, and whether it is read there and not before.

    In the pass whose attention results are cut, gradients reach a result by no later attention.
    """
    places = [place for place in streams.places if place.result and place.tensor.requires_grad]
    if not scalar.requires_grad or not places:
        raise TargetError(UNMOVED)
    tensors = [place.tensor for place in places]
    gradients = torch.autograd.grad(scalar.sum(), tensors, retain_graph=True, allow_unused=True)
    weights = torch.zeros(streams.count, dtype=torch.float64)
    at_last = torch.ones(streams.count, dtype=torch.bool)  # whether a token is read where attention last gave to it
    for place, gradient in zip(places, gradients, strict=True):
        if gradient is not None:
            norms = gradient.double().norm(dim=place.channels).cpu()
            here = torch.zeros_like(weights).index_add(0, place.tokens.flatten(), norms.flatten() ** 2).sqrt()
            weights = torch.where(here > 0, here, weights)
            at_last[place.named] = here[place.named] > 0
    return weights, at_last


def shared_among(streams: Streams, samples: Tensor, read: Tensor, norms: Tensor | None) -> Tensor:
    """Let the tokens of one sequence and one sample that are read share the weight of one."""
    if not bool(read.any()):
        raise TargetError(UNMOVED)
    groups = streams.sequence_of * (int(samples.max()) + 1) + samples
    weights = read.double() if norms is None else norms * read
    return weights / torch.bincount(groups, weights)[groups].clamp(min=torch.finfo(weights.dtype).tiny)


def last_calls(streams: Streams, wide: Tensor) -> Tensor | None:
    """Return the attention call that gives last to each token that an answer may read, -1 for other tokens.

    Nothing but the answer reads these tokens after that call. So a gradient there is the answer's own, also in a pass
    whose results are not cut. Asked with random weights of all numbers that the model answers.

    Returns:
        None where such a gradient may not be the answer's.
    """
    if not wide.is_floating_point() or wide.dtype.itemsize < 4 or not wide.requires_grad:
        return None
    seed = torch.randn(wide.shape, generator=torch.Generator().manual_seed(0)).to(wide)
    weights, at_last = _direct_weights(streams, (wide * seed).flatten(1).sum(dim=1))
    direct = weights > 0
    below = streams.known_until(frozenset(streams.sequence_of[direct].tolist()))
    direct &= ~torch.isin(streams.sequence_of, torch.tensor(list(below), dtype=torch.long))
    last, when = torch.full((streams.count,), -1), torch.full((streams.count,), -1)
    used = torch.full((streams.count,), -1)  # the last event that reads a token as it is
    for number, event in enumerate(streams.events):
        if isinstance(event, AttentionEvent):
            last[event.queries], when[event.queries] = event.call, number
            used[event.keys] = number
        else:
            used[event.source] = number
    if not bool(direct.any()) or bool((direct & (~at_last | (last < 0) | (used > when))).any()):
        return None
    # Another input may be read at other tokens, as by a maximum over all of them.
    alike = torch.isin(streams.sequence_of, streams.sequence_of[direct].unique())
    direct |= alike & (last >= 0) & (used <= when)
    return last.where(direct, -1)
