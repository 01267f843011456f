"""Whether row i of every attention call belongs to token i of its block.

Windows, packed sequences and shuffled tokens have the same shapes as tokens in order. Coded gradients show the
difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from vitrail.capture.coded_gradients import MIXED, NOWHERE, Rows, call_result, numbered, sources, with_heads
from vitrail.capture.executions import node_of, reached
from vitrail.capture.layers import batch_first, unequal
from vitrail.capture.refusals import AT_THE_INPUTS, COUPLED
from vitrail.capture.seams import AttentionCall
from vitrail.models.anatomy import Block, Body


@dataclass
class MeasuredBlock:
    """One block of the pass that is measured, cut off from the others."""

    arriving: Tensor | None = None  # with the graph that leads to what other blocks gave
    entering: Tensor | None = None  # the same, with no graph below it
    leaving: Tensor | None = None
    beside: list[Tensor] = field(default_factory=list)  # other tensors of real numbers that the block was given
    calls: list[AttentionCall] = field(default_factory=list)


def check_tokens(blocks: list[MeasuredBlock], batch: int, body: Body, assumed: list[str]) -> str | None:
    """Why what a block reads and what it passes on beside attention are not its tokens in order; None if they are.

    Both are asked at once, and one by one only where that shows something. Gradients have to end at what attention
    gives.
    """
    read: Rows = []
    reads_all = True  # whether what every block reads depends on what enters it
    for index, block in enumerate(blocks):
        shaped = _shaped_operands(index, block, batch, body)
        if isinstance(shaped, str):
            return shaped
        read += [(x, numbered(x)) for x in shaped]
        reads_all = reads_all and bool(reached([node_of(x) for x in shaped], {node_of(block.entering)} - {None}))
    given = [x.leaving for x in blocks if isinstance(x.leaving, Tensor) and x.leaving.requires_grad]
    whole = len(given) == len(blocks)
    passed = [(x, numbered(x)) for x in map(batch_first, body.blocks, given)] if whole else []
    places = [block.entering for block in blocks if block.entering is not None]
    together = _fed_tokens(read + passed, places, body.blocks) if reads_all and whole else [None]
    if all(x is not None and compare_rows(x, "", 0) is None for x in together):
        return None
    for rows, what in ((read, "what it reads"), (passed, "what it passes on beside attention")):
        for index, one in enumerate(_fed_tokens(rows, places, body.blocks)):
            if one is None:
                assumed += ["the operands of attention are those of the tokens in order"] if rows is read else []
            elif (refusal := compare_rows(one, what, index)) is not None:
                return refusal
    return None


def _fed_tokens(rows: Rows, places: list[Tensor], parts: Sequence[Block]) -> list[Tensor | None]:
    """The row that every token of states of blocks feeds, `[b, t]`; None where none does."""
    found = zip(sources(rows, places, channels=2), parts, strict=True)
    return [x if x is None or part.batch_first else x.T for x, part in found]


def _shaped_operands(index: int, block: MeasuredBlock, batch: int, body: Body) -> list[Tensor] | str:
    """The operands of a block's attention call as `[b, h, t, d]`, or why they are not one row for each token."""
    (call,) = block.calls
    assert block.entering is not None
    tokens = batch_first(body.blocks[index], block.entering).shape[1]
    shaped = []
    for name, x in {"queries": call.query, "keys": call.key, "values": call.value}.items():
        if x is None:
            continue
        heads = with_heads(x, batch)
        if heads is None or heads.shape[2] != tokens:
            if heads is not None and name != "queries":
                return unequal(index, tokens, heads.shape[2])
            seen = f"its {name} have shape {tuple(x.shape)} where the block has {batch} x {tokens} tokens"
            return unreadable(index, seen)
        shaped.append(heads)
    return shaped


def check_results(blocks: list[MeasuredBlock], batch: int, body: Body, assumed: list[str]) -> str | None:
    """Why what attention gives is not added to the tokens in order; None if it is."""
    rows: Rows = []
    places: dict[int, Tensor] = {}
    for index, (block, part) in enumerate(zip(blocks, body.blocks, strict=True)):
        (call,) = block.calls
        result = call_result(call)
        if block.leaving is None or result is None or not result.requires_grad:
            assumed.append("what attention gives is added to the tokens in order")
            continue
        out, shown = batch_first(part, block.leaving), with_heads(result.detach(), batch)
        if out.ndim != 3 or out.shape[0] != batch or shown is None or shown.shape[2] != out.shape[1]:
            return unreadable(index, f"it gives rows of shape {tuple(result.shape)} to {tuple(out.shape)} tokens")
        rows.append((out, numbered(out)))
        places[index] = result
    for (index, result), found in zip(places.items(), _by_rank(rows, list(places.values())), strict=True):
        if found is None:
            assumed.append("what attention gives is added to the tokens in order")
            continue
        refusal = compare_rows(found.reshape(batch, -1, result.shape[-2]), "what it gives", index)
        if refusal is not None:
            return refusal
    return None


def check_sequence(
    blocks: list[MeasuredBlock], body: Body, read: list[Tensor], *, order: list[int], real: Tensor | None
) -> str | None:
    """Why what a block gives is not, token by token, what the next one reads; None if it is.

    Args:
        read: the tokens after each block that the answer reads other than by way of later blocks.
        order: the numbers of the blocks as they were called.
        real: the mask of tokens that are no padding.
    """
    if order != sorted(set(order)):
        return f"the blocks are called in the order {order}, not one after the other. {AT_THE_INPUTS}"
    streams = [
        batch_first(part, x.arriving) for part, x in zip(body.blocks, blocks, strict=True) if x.arriving is not None
    ]
    counts = [x.shape[1] for x in streams]
    if len(set(counts)) > 1:
        return f"the blocks work on {counts} tokens: a model that changes their number is not walked. {AT_THE_INPUTS}"
    first, last = blocks[0].arriving, blocks[-1].leaving
    assert first is not None
    assert last is not None
    # What passes blocks by has to arrive at the same tokens too, of a later block or of what the last one gives.
    rows = [(x, numbered(x)) for x in (*streams[1:], batch_first(body.blocks[-1], last))]
    places = [first, *(block.leaving for block in blocks[:-1] if block.leaving is not None)]
    beside, *given = _fed_tokens(rows, places, (body.blocks[0], *body.blocks[:-1]))
    if beside is not None and (refusal := compare_rows(beside, "tokens that pass blocks by", 0)) is not None:
        return refusal
    answered = bool(read[-1].any())
    for index, found in enumerate(given):
        if (refusal := _check_next(found, index, real, unread=answered and bool(read[index].any()))) is not None:
            return refusal
    return None


def _check_next(found: Tensor | None, index: int, real: Tensor | None, *, unread: bool) -> str | None:
    """Why what one block gives is not what later ones read; `unread`: whether the answer reads it past later blocks."""
    if found is None or not bool((found != NOWHERE).any()):
        if not unread:
            return None
        return (  # blocks whose results meet in the answer alone, such as those of two models
            f"the blocks up to {index} and the later ones work side by side: no later block reads what block {index} "
            f"gives, but the answer reads both. A walk through them one after the other would be wrong. {AT_THE_INPUTS}"
        )
    if (refusal := compare_rows(found, "the tokens after it", index)) is not None:
        return refusal
    lost = found == NOWHERE
    lost = lost & real.bool().to(lost.device) if real is not None and real.shape == lost.shape else lost
    if bool(lost.any()):
        return unreadable(index, f"{int(lost.sum())} of {lost.numel()} tokens after it are replaced by others")
    return None


def check_samples(answer: Tensor | None, tokens: Tensor, body: Body) -> str | None:
    """Why the answer to one sample is not that of its tokens alone; None if it is.

    Args:
        tokens: what the last block gives, with no graph below it.
    """
    if answer is None or tokens.ndim != 3:
        return None
    batch = tokens.shape[0 if body.blocks[-1].batch_first else 1]
    if batch < 2 or answer.shape[0] != batch:
        return None
    numbers = torch.arange(batch, device=answer.device).view(-1, *[1] * (answer.ndim - 1))
    (found,) = _fed_tokens([(answer, numbers)], [tokens], body.blocks[-1:])
    if found is None:
        return None
    own = torch.arange(batch, device=found.device)[:, None]
    if bool(((found == own) | (found == NOWHERE)).all()):
        return None
    return COUPLED


def check_chain(calls: list[AttentionCall], batch: int) -> str | None:
    """Why attention calls outside of blocks are not one after the other, token by token; None if they are."""
    for index, (first, second) in enumerate(pairwise(calls)):
        place, operands = call_result(first), (second.query, second.key, second.value)
        given, read = node_of(place), [node_of(x) for x in (*operands, second.weights)]
        if given is not None and any(read) and not reached(read, {given}):
            return (
                f"attention call {index + 1} of {len(calls)} does not read what call {index} gives: they stand side "
                f"by side, and no block tells how they are joined. {AT_THE_INPUTS}"
            )
        shaped = [with_heads(x, batch) for x in operands if x is not None]
        rows = [(x, numbered(x)) for x in shaped if x is not None]
        if place is None or not place.requires_grad or not rows:
            continue
        (found,) = sources(rows, [place], channels=place.ndim - 1)
        found = None if found is None else found.reshape(batch, -1, place.shape[-2])
        if found is not None and (refusal := compare_rows(found, "what the next call reads", index)) is not None:
            return refusal
    return None


def _by_rank(rows: Rows, places: list[Tensor]) -> list[Tensor | None]:
    """`sources` at the last axis of places of any rank."""
    ranks = {x.ndim for x in places}
    if len(ranks) != 1:
        return [found for row, place in zip(rows, places, strict=True) for found in _by_rank([row], [place])]
    return sources(rows, places, channels=ranks.pop() - 1)


def compare_rows(found: Tensor, what: str, index: int) -> str | None:
    """Why measured rows are not the tokens in order; places that feed nothing say nothing."""
    batch, tokens = found.shape[0], found.shape[-1]
    expected = torch.arange(batch * tokens, device=found.device).view(batch, *[1] * (found.ndim - 2), tokens)
    wrong = (found != NOWHERE) & (found != expected)
    if not bool(wrong.any()):
        return None
    mixed = int((found == MIXED).sum())
    if mixed:
        return unreadable(index, f"{what} mix tokens: {mixed} of {found.numel()} places feed more than one row")
    first = wrong.nonzero()[0]
    token, row = int(first[-1]), int(found[tuple(first)]) % tokens
    return unreadable(index, f"{what} are in another order than the tokens: token {token} is row {row}")


def flattened(entering: Tensor) -> str:
    """Say that the blocks have no axis of samples."""
    return (
        f"the blocks work on a state of shape {tuple(entering.shape)}, in which samples and tokens share an axis, so "
        f"rows cannot be told apart by sample. Leave anatomy out, and they are measured. {AT_THE_INPUTS}"
    )


def unreadable(index: int, seen: str) -> str:
    """Why the attention of a block cannot be read token by token."""
    return (
        f"the attention of block {index} cannot be read token by token: {seen}. Windows, packed sequences, shuffled "
        f"tokens and convolutions in a block or after it are such cases. {AT_THE_INPUTS}"
    )
