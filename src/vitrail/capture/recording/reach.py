"""The tokens that can reach the explained scalar, and the padding: facts of masks, never of what a method credits.

A token reaches the scalar if the scalar reads it, or if a token that does may attend to it in a layer below. Only what
attention lets pass is asked, so no gradient is needed, and a saturated unit hides nothing.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from vitrail.capture.seams import AttentionCall
from vitrail.capture.seams.call import as_mask, call_shape
from vitrail.errors import SeamError

MASKED = 9000.0
"""A score this far below the others of its query is a mask, however it is written: -1e4, -1e9, the lowest number."""
MOST_ENTRIES = 2**26
"""Entries of masks that are looked at together."""


def allowed(mask: Tensor) -> Tensor:
    """Return which entries of a mask let a key through. A query all of whose keys are equally low sees them all."""
    if mask.dtype is torch.bool:
        return mask
    return (mask >= mask.amax(dim=-1, keepdim=True) - MASKED) & (mask > -torch.inf)


def seen_by_mask(call: AttentionCall, batch: int) -> Tensor:
    """Return which key each query sees in any head, `[b, q, k]`, the first two axes may be one."""
    if call.weights is not None:
        weights = call.weights.detach()
        weights = weights if weights.ndim == 4 else weights.view(-1, call_heads(weights, batch), *weights.shape[1:])
        return (weights != 0).any(dim=1)
    assert call.mask is not None
    seen = allowed(as_mask(call.mask, batch)).any(dim=1)
    return seen.expand(-1, -1, call_shape(call)[1])


def call_heads(weights: Tensor, batch: int) -> int:
    """Return the number of heads of a map `[b*h, q, k]`."""
    return max(1, len(weights) // batch)


def of_tokens(seen: Bool[Tensor, "_ q k"], tokens: int) -> Bool[Tensor, "_ q t"] | None:
    """Cut keys that are no tokens, before or after those that are; None where it is not known which they are."""
    more = seen.shape[2] - tokens
    if more == 0:
        return seen
    if more < 0:
        return None
    real = seen.any(dim=2, keepdim=True)
    for others, own in ((slice(None, more), slice(more, None)), (slice(tokens, None), slice(None, tokens))):
        if bool((seen[:, :, others] | ~real).all()):
            return seen[:, :, own]
    return None


def pass_down(found: Bool[Tensor, "b q"], seen: Bool[Tensor, "_ _ k"]) -> Bool[Tensor, "b k"]:
    """Return the keys that any of the queries found may see."""
    if seen.shape[1] == 1:
        return found.any(dim=1, keepdim=True) & seen[:, 0]
    size = max(1, MOST_ENTRIES // max(1, len(found) * seen.shape[2]))
    given = found.new_zeros(len(found), seen.shape[2])
    for start in range(0, found.shape[1], size):
        cut = slice(start, start + size)
        given |= (found[:, cut, None] & seen[:, cut]).any(dim=1)
    return given


def reach(calls: Sequence[AttentionCall], read: Bool[Tensor, "b t"]) -> Bool[Tensor, "b t"] | None:
    """Return the tokens that reach what is read of the last layer; None where all do.

    Args:
        calls: one of each layer, first to last, each with a mask.
    """
    found, tokens = read, read.shape[1]
    known: dict[int, Tensor | None] = {}  # layers often share one mask
    for call in reversed(calls):
        queries, keys = call_shape(call)
        if queries != tokens or (call.causal and keys != tokens):
            return None
        if call.causal:  # every token before the last one that is found
            found = found.flip(1).cummax(dim=1).values.flip(1)
            continue
        if call.weights is not None or id(call.mask) not in known:
            known[id(call.mask)] = of_tokens(seen_by_mask(call, len(read)), tokens)
        seen = known[id(call.mask)]
        if seen is None:
            return None
        found = found | pass_down(found, seen)
        if found.device.type == "cpu" and bool(found.all()):
            return None
    return found


def unattended(call: AttentionCall, batch: int) -> Bool[Tensor, "b k"] | None:
    """Return the keys that a mask hides from every query, where all other tokens see themselves; else none.

    Where no token sees itself, the last one of a causal model is hidden from all, and is no padding.
    """
    if call.causal:
        return None
    if call.weights is None and call.mask is not None and call.mask.dtype is not torch.bool:
        low = as_mask(call.mask, batch)  # a query of padding may see nothing but keys that are equally low
        seen = (low > -MASKED).any(dim=1).expand(-1, -1, call_shape(call)[1])
    else:
        seen = seen_by_mask(call, batch)
    hidden = ~seen.any(dim=1)
    if len(hidden) not in (1, batch):
        raise SeamError(
            f"attention layer 0 keeps maps of {len(hidden)} samples where {batch} were given: its heads stand before "
            "the samples, so which map belongs to which sample is not known. Use a gradient method, such as "
            "integrated_gradients."
        )
    if seen.shape[1] == seen.shape[2]:
        itself = seen.diagonal(dim1=1, dim2=2)
        hidden = hidden & (itself | hidden).all(dim=1, keepdim=True)
    # Where a mask hides every token, none is padding beside others.
    return (hidden & ~hidden.all(dim=1, keepdim=True)).expand(batch, -1)


def named_by_mask(hidden: Bool[Tensor, "b t"], given: Iterable[Tensor]) -> Bool[Tensor, " b"]:
    """Return the samples in which one of the arguments hides these tokens and no others.

    A mask may call padding one or zero, true or false, or minus infinity.
    """
    said = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    for x in given:
        if x.ndim < 2 or x.shape[-1] != hidden.shape[1] or x.shape[0] not in (1, len(hidden)):
            continue
        for read in READINGS:
            tokens = read(x.to(hidden.device)).unsqueeze(1).flatten(1, -2).all(dim=1)
            said |= (tokens == hidden).all(dim=1)
    return said


READINGS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x == 0,
    lambda x: x != 0,
    lambda x: x < -MASKED if x.is_floating_point() else x == 0,
)
"""How an argument may say of a token that it is hidden."""


def one_word(hidden: Bool[Tensor, "b t"], ids: Tensor | None) -> Bool[Tensor, " b"]:
    """Return the samples in which the hidden tokens are those of one word, the same in the whole batch: padding."""
    if ids is None or ids.shape != hidden.shape:
        return torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    word = ids.masked_fill(~hidden, torch.iinfo(ids.dtype).min).amax()
    return ((ids == word) == hidden).all(dim=1)
