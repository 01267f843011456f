"""A check that row i of every attention call belongs to token i of one sequence.

Windows, packed sequences and shuffled tokens have the same shapes as tokens in order. Coded gradients show the
difference. They are asked once for all calls together; block by block only where the answer is no, to say what was
seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from vitrail.capture.graph_nodes import node_of, reached
from vitrail.capture.refusals import AT_THE_INPUTS, COUPLED, unequal
from vitrail.capture.structure.token_codes import (
    MIXED,
    NOWHERE,
    CodePairs,
    State,
    numbers_of_tokens,
    sources,
    with_heads,
)
from vitrail.capture.structure.trace import Execution, TracedCall
from vitrail.models.anatomy import Block


@dataclass(frozen=True, eq=False)
class TracedBlock:
    """One time that a block ran, and the attention calls in it."""

    part: Block
    run: Execution | None  # None where it did not run
    calls: list[TracedCall]

    @property
    def arriving(self) -> State | None:
        """The stream that it was given."""
        return None if self.run is None else self.run.stream

    @property
    def leaving(self) -> State | None:
        """The stream that it gave."""
        return None if self.run is None or not self.run.plain else self.run.left

    @property
    def count(self) -> int:
        """The number of tokens it was given."""
        assert self.arriving is not None
        return self.arriving.shape[1 if self.part.batch_first else 0]

    def numbered(self, state: State) -> tuple[State, Tensor]:
        """Return a state of its stream with the numbers of the tokens."""
        return state, numbers_of_tokens(state.shape, batch_first=self.part.batch_first)

    def by_sample(self, found: Tensor) -> Tensor:
        """Return what was found of the tokens of its stream as `[b, t]`."""
        return found if self.part.batch_first else found.T


def are_in_order(blocks: Sequence[TracedBlock], batch: int, real: Tensor | None) -> bool:
    """Return True if every row of every call and of every block is a token of one sequence, in its order.

    Args:
        real: the mask of tokens that are no padding.
    """
    streams = [block.arriving for block in blocks]
    given = [block.leaving for block in blocks]
    if any(x is None or not x.requires_grad for x in (*streams, *given)):
        return False
    read: list[tuple[Tensor, Tensor]] = []
    for block in blocks:
        shaped = _shaped_operands(block, batch)
        if shaped is None or not reached([node_of(x) for x in shaped], {node_of(block.arriving)}):
            return False
        read += [(x, numbers_of_tokens(x.shape)) for x in shaped]
    entered = [block.numbered(x) for block, x in zip(blocks, streams, strict=True) if x is not None]
    left = [block.numbered(x) for block, x in zip(blocks, given, strict=True) if x is not None]
    if not _are_fed_in_order(blocks, [*read, *entered[1:], left[-1]], batch, real):
        return False
    if all(_is_same(one, other) for (one, _), (other, _) in zip(left, entered[1:], strict=False)):
        return True
    return _are_fed_in_order(blocks, [*read, *left], batch, real)


def _is_same(one: State, other: State) -> bool:
    """Return True if two states are one tensor at one moment."""
    return one.tensor is other.tensor and one.edge == other.edge


def _are_fed_in_order(blocks: Sequence[TracedBlock], rows: CodePairs, batch: int, real: Tensor | None) -> bool:
    """Return True if every token that arrives, and every row that attention gives, feeds the rows of its number."""
    first = blocks[0].arriving
    assert first is not None
    places: dict[int, list[tuple[Tensor | State, TracedCall | None]]] = {-1: [(first, None)]}  # by the axis of channels
    for block in blocks:
        (one,) = block.calls
        shape = straight_shape(one, batch)
        if one.output is None or shape is None or shape[-2] != block.count:
            return False
        last = one.order[-1] == one.output.ndim - 1
        places.setdefault(-1 if last else one.order[-1], []).append((one.output, one))
    for channels, some in places.items():
        for found, (_, one) in zip(sources(rows, [x for x, _ in some], channels=channels), some, strict=True):
            if found is None:
                return False
            own = blocks[0].by_sample(found) if one is None else _by_row(found, one, batch)
            if not _is_straight(own, real):
                return False
    return True


def _is_straight(found: Tensor, real: Tensor | None) -> bool:
    """Return True if rows `[b, ..., t]` are the tokens in order; padding may feed nothing."""
    batch, tokens = found.shape[0], found.shape[-1]
    own = torch.arange(batch * tokens, device=found.device).view(batch, *[1] * (found.ndim - 2), tokens)
    wrong = found != own
    if not bool(wrong.any()):
        return True
    if real is None or real.shape != (batch, tokens):
        return False
    hidden = ~real.bool().to(found.device).view(own.shape)
    return not bool((wrong & ~((found == NOWHERE) & hidden)).any())


def straight_shape(one: TracedCall, batch: int) -> torch.Size | None:
    """Return the shape `[b, h, q, d]` or `[b * h, q, d]` of what a call gave; None where samples cannot be told."""
    if one.output is None or not one.order:
        return None
    shape = one.output.permute(one.order).shape
    known = (len(shape) == 4 and shape[0] == batch) or (len(shape) == 3 and shape[0] % batch == 0)
    return shape if known else None


def _by_row(found: Tensor, one: TracedCall, batch: int) -> Tensor:
    """Return what was found of the rows that a call gave as `[b, h, q]`."""
    straight = found.unsqueeze(one.order[-1]).permute(one.order)[..., 0]
    return straight.reshape(batch, -1, straight.shape[-1])


def _shaped_operands(block: TracedBlock, batch: int) -> list[Tensor] | None:
    """The operands of a block's call as `[b, h, t, d]`; None where they are not one row for each token."""
    call = block.calls[0].call
    shaped = []
    for x in (call.query, call.key, call.value):
        heads = None if x is None else with_heads(x, batch)
        if x is not None and (heads is None or heads.shape[2] != block.count):
            return None
        shaped += [] if heads is None else [heads]
    return shaped


def find_disorder(blocks: Sequence[TracedBlock], batch: int, assumed: list[str]) -> str | None:
    """Return why the tokens that blocks read, give and pass on are not in order; None if they are.

    What cannot be asked is added as assumed.
    """
    unshaped = (_find_other_shape(index, block, batch) for index, block in enumerate(blocks))
    refusal = next((one for one in unshaped if one is not None), None)
    if refusal is not None:
        return refusal
    for index, block in enumerate(blocks):
        (one,) = block.calls
        given = block.leaving
        left = [] if given is None else [block.numbered(given)]
        read = [(x, numbers_of_tokens(x.shape)) for x in _shaped_operands(block, batch) or []]
        asked = {
            "what it reads": _fed_tokens(read, block, block.arriving),
            "what it gives": _fed_rows(left, one, batch),
            "what it passes on beside attention": _fed_tokens(left, block, block.arriving),
        }
        for what, found in asked.items():
            refusal = None if found is None else compare_rows(found, what, index)
            if refusal is not None:
                return refusal
        assumed += [ASSUMED[what] for what, found in asked.items() if found is None and what in ASSUMED]
    return None


ASSUMED = {
    "what it reads": "the operands of attention are those of the tokens in order",
    "what it gives": "what attention gives is added to the tokens in order",
}
"""What is taken for granted where nothing is found of it."""


def _fed_tokens(rows: CodePairs, block: TracedBlock, place: State | None) -> Tensor | None:
    """The row `[b, t]` that every token of a state of a block's stream feeds; None where none does."""
    if place is None:
        return None
    (found,) = sources(rows, [place], channels=2)
    return None if found is None else block.by_sample(found)


def _fed_rows(rows: CodePairs, one: TracedCall, batch: int) -> Tensor | None:
    """The row `[b, h, q]` that every row which a call gave feeds; None where none does."""
    if one.output is None or not one.order or not one.output.requires_grad:
        return None
    (found,) = sources(rows, [one.output], channels=one.order[-1])
    return None if found is None else _by_row(found, one, batch)


def _find_other_shape(index: int, block: TracedBlock, batch: int) -> str | None:
    """Return why the input and output of a block's call do not have one row for each token; None if they do."""
    (one,) = block.calls
    call, tokens = one.call, block.count
    for name, x in {"queries": call.query, "keys": call.key, "values": call.value}.items():
        heads = None if x is None else with_heads(x, batch)
        if x is None or (heads is not None and heads.shape[2] == tokens):
            continue
        if heads is not None and name != "queries":
            return unequal(index, tokens, heads.shape[2])
        return unreadable(
            index, f"its {name} have shape {tuple(x.shape)} where the block has {batch} x {tokens} tokens"
        )
    shape = straight_shape(one, batch)
    if one.output is not None and one.order and (shape is None or shape[-2] != tokens):
        return unreadable(index, f"it gives rows of shape {tuple(one.output.shape)} to {tokens} tokens")
    return None


def check_order(blocks: Sequence[TracedBlock], order: list[int]) -> str | None:
    """Return why blocks do not work on the same number of tokens one after the other; None if they do.

    Args:
        order: the numbers of the blocks as they were called.
    """
    if order != sorted(set(order)):
        return f"the blocks are called in the order {order}, not one after the other. {AT_THE_INPUTS}"
    counts = [block.count for block in blocks]
    if len(set(counts)) > 1:
        return f"the blocks work on {counts} tokens: a model that changes their number is not walked. {AT_THE_INPUTS}"
    return None


def check_sequence(blocks: Sequence[TracedBlock], read: list[Tensor], real: Tensor | None) -> str | None:
    """Return why the output of a block is not, token by token, what later ones read; None if it is.

    Args:
        read: the tokens that the answer reads of what each block gives.
        real: the mask of tokens that are no padding.
    """
    answered = bool(read[-1].any())
    for index, (block, later) in enumerate(pairwise(blocks)):
        given, arriving = block.leaving, later.arriving
        if given is None or arriving is None:
            continue
        found = _fed_tokens([later.numbered(arriving)], block, given)
        if found is None or not bool((found != NOWHERE).any()):  # the next block does not read it: perhaps a later one
            found = _fed_tokens(_rows_after(blocks[index + 1 :]), block, given)
        refusal = _check_next(found, index, real, unread=answered and bool(read[index].any()))
        if refusal is not None:
            return refusal
    return None


def check_beside(blocks: Sequence[TracedBlock]) -> str | None:
    """Return why tokens that pass blocks by do not arrive at the tokens that go through them; None if they do.

    Asked where each block alone was found to keep its tokens in order.
    """
    beside = _fed_tokens(_rows_after(blocks), blocks[0], blocks[0].arriving)
    if beside is None:
        return None
    mixed = int((beside == MIXED).sum())
    if not mixed:
        return compare_rows(beside, "tokens that pass blocks by", 0)
    seen = f"are in another order than those that go through them: {mixed} of {beside.numel()} feed more than one row"
    return unreadable(0, f"tokens that pass blocks by {seen}")


def _rows_after(blocks: Sequence[TracedBlock]) -> CodePairs:
    """The tokens that enter blocks after the first of these, and those that the last gives."""
    rows = [block.numbered(block.arriving) for block in blocks[1:] if block.arriving is not None]
    last = blocks[-1].leaving
    return rows if last is None else [*rows, blocks[-1].numbered(last)]


def _check_next(found: Tensor | None, index: int, real: Tensor | None, *, unread: bool) -> str | None:
    """Return why a block's output is not what later ones read; `unread`: whether the answer reads it past them."""
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


def check_samples(answer: Tensor, last: TracedBlock, after: Sequence[TracedCall], batch: int) -> str | None:
    """Return why the answer to one sample is not that of its tokens alone; None if it is.

    Args:
        after: attention calls between the last block and the answer, such as a pooling query.
    """
    given = last.leaving
    if given is None or len(given.shape) != 3 or batch < 2 or answer.shape[0] != batch:
        return None
    if given.shape[0 if last.part.batch_first else 1] != batch:
        return None
    rows: list[tuple[Tensor, Tensor]] = []
    for x in (answer, *(x for one in after for x in one.operands)):
        if x.requires_grad and x.shape[0] == batch:
            rows.append((x, torch.arange(batch).view(-1, *[1] * (x.ndim - 1))))
    results = [one.output for one in after if one.output is not None and one.output.shape[0] == batch]
    for place in (given, *results):
        (found,) = sources(rows, [place], channels=-1)
        if found is None:
            continue
        found = last.by_sample(found) if place is given else found
        own = torch.arange(batch, device=found.device).view(-1, *[1] * (found.ndim - 1))
        if not bool(((found == own) | (found == NOWHERE)).all()):
            return COUPLED
    return None


def check_chain(calls: Sequence[TracedCall], batch: int) -> str | None:
    """Return why attention calls outside of blocks are not one after the other, token by token; None if they are."""
    for index, (first, second) in enumerate(pairwise(calls)):
        given, read = node_of(first.output), [node_of(x) for x in second.operands]
        if given is not None and any(read) and not reached(read, {given}):
            return (
                f"attention call {index + 1} of {len(calls)} does not read what call {index} gives: they stand side "
                f"by side, and no block tells how they are joined. {AT_THE_INPUTS}"
            )
        call = second.call
        shaped = [with_heads(x, batch) for x in (call.query, call.key, call.value) if x is not None]
        rows = [(x, numbers_of_tokens(x.shape)) for x in shaped if x is not None]
        found = _fed_rows(rows, first, batch)
        if found is not None and (refusal := compare_rows(found, "what the next call reads", index)) is not None:
            return refusal
    return None


def compare_rows(found: Tensor, what: str, index: int) -> str | None:
    """Return why measured rows are not the tokens in order; places that feed nothing say nothing."""
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


def flattened(entering: State) -> str:
    """Say that the blocks have no axis of samples."""
    return (
        f"the blocks work on a state of shape {tuple(entering.shape)}, in which samples and tokens share an axis, so "
        f"rows cannot be told apart by sample. Leave anatomy out, and they are measured. {AT_THE_INPUTS}"
    )


def unreadable(index: int, seen: str) -> str:
    """Return the reason why the attention of a block cannot be read token by token."""
    return (
        f"the attention of block {index} cannot be read token by token: {seen}. Windows, packed sequences, shuffled "
        f"tokens and convolutions in a block or after it are such cases. {AT_THE_INPUTS}"
    )


def batch_first(block: Block | None, x: Tensor) -> Tensor:
    """A state of the stream as `[b, t, d]`."""
    return x if block is None or block.batch_first else x.transpose(0, 1)
