"""The structure of a model: what it does with its tokens, measured on the model.

Two questions are asked of every model with one sequence of tokens and every form of input, once:

* Which part of the input does each token of the blocks come from: which patch, which word, or none (class tokens,
  registers, soft prompts)?
* Does row i of every attention call belong to token i of its block? Windows, packing and shuffled tokens look alike
  from outside.

The answers come from coded gradients.
"""

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitrail.capture import refusals
from vitrail.capture.checkpointed import keep_saved, keeps_saved
from vitrail.capture.graph_nodes import node_of, reached, state_of
from vitrail.capture.outputs import read_output
from vitrail.capture.shadow import autograd, in_precision, memory_of
from vitrail.capture.structure import tokens
from vitrail.capture.structure.cache import NO_FORM, InputForm, content_of
from vitrail.capture.structure.detached import Known
from vitrail.capture.structure.origins import SAMPLES_DIFFER, Arriving, Origin, origin_of, other_input
from vitrail.capture.structure.token_codes import State, call_result, in_graph, with_heads
from vitrail.capture.structure.tokens import TracedBlock, batch_first
from vitrail.capture.structure.trace import (
    SAMPLES,
    Execution,
    TracedCall,
    TracedPass,
    is_same,
    take_trace,
    trace,
)
from vitrail.capture.structure.unseen_mixing import batch_first_state, find_unseen_mixing, result_state
from vitrail.errors import SeamError, VitrailError
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs


@dataclass(frozen=True)
class Structure:
    """The measured structure: the origin of tokens, and why attention cannot be read token by token, if it cannot."""

    origin: Origin | str
    refusal: str | None = None
    assumed: tuple[str, ...] = ()
    used: int = 0  # how many of the blocks the answer depends on; those after them take no part
    together: str | None = "the blocks are not known"  # why they cannot be differentiated one by one; None if they can
    no_gradient: str | None = None  # why the model cannot be differentiated, if it cannot
    detaches: bool = False  # whether the model takes tensors out of the graph, which may depend on the sample's place
    conditional: bool = False  # whether the answer may depend on more blocks for another input
    form: InputForm = NO_FORM  # of the inputs it holds for
    writes: bool = False  # whether the model writes into what enters a block, or into what the last one gives


@dataclass(frozen=True, eq=False)
class _BlockwiseTrace:
    """A pass that structure is read off, by the blocks of the model."""

    body: Body
    seen: TracedPass
    blocks: list[TracedBlock]
    outside: list[TracedCall]  # the attention calls in no block
    order: list[int]  # the numbers of the blocks as they were called
    answer: Tensor

    @property
    def end(self) -> int:
        """When the last block, or the first attention call where there are no blocks, had run."""
        if not self.blocks:
            return self.outside[0].at if self.outside else 0
        return max((block.run.ends for block in self.blocks if block.run is not None), default=0)

    @property
    def arriving(self) -> Arriving | None:
        """The tokens that enter the first block, or the first attention call where there are no blocks."""
        if self.blocks:
            first = self.blocks[0]
            return None if first.arriving is None else Arriving(first.arriving, first.part.batch_first)
        # One row for each token, as a block would show.
        values = (with_heads(x, self.seen.batch) for one in self.outside if (x := one.call.value) is not None)
        found = next(values, None)
        return None if found is None else Arriving(state_of(found))

    @property
    def begin(self) -> int:
        """When the first block, or the first attention call where there are no blocks, began to run."""
        if not self.blocks:
            return self.outside[0].at if self.outside else self.seen.clock
        first = self.blocks[0].run
        return self.seen.clock if first is None else first.begins


def measure_structure(
    model: nn.Module, inputs: Inputs, body: Body, form: InputForm, *, most: int = SAMPLES
) -> Structure:
    """Return the structure, measured on at most so many samples, of a model with readable attention and weights."""
    refusals.check_model(model)
    some = inputs if inputs.batch <= most else inputs.take(torch.arange(most))
    try:
        found = _measured(model, some, body)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        if some is inputs or isinstance(error, (VitrailError, torch.OutOfMemoryError)):
            raise
        some, found = inputs, _measured(model, inputs, body)  # the model takes no fewer samples
    why = refusals.why_not_differentiable(model)
    found = replace(found, no_gradient=why or found.no_gradient, form=form)
    measured_in_call(model)[content_of(some)] = found
    return found


def measured_in_call(model: nn.Module) -> dict[Hashable, Structure]:
    """Return what the call that runs has measured, by the content of the inputs."""
    return memory_of(model).call.setdefault("measured", {})


def _measured(model: nn.Module, some: Inputs, body: Body) -> Structure:
    """Return the structure that one pass shows, in which results of attention are cut from the graph."""
    # Half precision has too few exponents for the codes.
    dtype = torch.float32 if any(p.dtype is torch.float16 for p in model.parameters()) else None
    some = some if dtype is None else some.cast(dtype)
    own = nullcontext() if dtype is None else torch.autocast(some.shown.device.type, enabled=False)
    with autograd(gradients=True), torch.random.fork_rng(devices=[]), in_precision(model, dtype), own:
        seen = None if dtype is not None else take_trace(model, some)
        seen = seen or trace(model, some.usable())
        if seen.checkpointed and not keeps_saved(model):
            # Recomputed in the backward pass, after the hooks are gone: run it as if it were not.
            keep_saved(model)
            seen = trace(model, some.usable())
        run = _by_blocks(body, seen)
        cut = _cut_by_detaching(run)
        judged = replace(_judged(some, run), no_gradient=cut, detaches=seen.detached.count > 0, writes=_writes(run))
        if not isinstance(judged.origin, Origin) or not body.blocks:
            return judged
        del run, seen
        check = _unmoved if judged.origin.measured or some.signal else counted_origin
        return replace(judged, origin=check(judged.origin, model, some, body))


def _by_blocks(body: Body, seen: TracedPass) -> _BlockwiseTrace:
    """Sort what was seen by the blocks; refuse attention that has no graph."""
    runs: list[list[Execution]] = []
    for index, block in enumerate(body.blocks):
        name, turn = body.ran[index] if body.ran else ("", 0)
        runs.append(
            [x for x in seen.every if ((x.name, x.turn) == (name, turn) if body.ran else x.module is block.module)]
        )
    numbers = {run: index for index, some in enumerate(runs) for run in some}
    calls: list[list[TracedCall]] = [[] for _ in body.blocks]
    outside = []
    for one in seen.calls:
        index = next((numbers[x] for x in one.stack if x in numbers), None)
        if one.no_graph and (index is not None or not body.blocks):
            raise refusals.no_graph(f"attention layer {index or 0}", one.no_graph)
        (outside if index is None else calls[index]).append(one)
    blocks = [
        TracedBlock(part, some[-1] if some else None, own)
        for part, some, own in zip(body.blocks, runs, calls, strict=True)
    ]
    order = [numbers[x] for x in seen.every if x in numbers]
    answer = read_output(seen.answer, span=body.anatomy.span, encodings=body.encodings).logits  # detaches nothing
    if seen.projections is not None:  # gradients inside of blocks need not be those of the weights
        ran = [run for some in runs for run in some]
        seen.projections.cheap.update(time for run in ran for time in range(run.begins, run.ends))
    return _BlockwiseTrace(body, seen, blocks, outside, order, answer)


def _writes(run: _BlockwiseTrace) -> bool:
    """Return True if the model writes into what enters a block, or into what the last one gives."""
    runs = [block.run for block in run.blocks if block.run is not None]
    return any(x.writes_in() for x in runs) or any(x.writes_out() for x in runs[-1:])


def counted_origin(origin: Origin, model: nn.Module, inputs: Inputs, body: Body) -> Origin | str:
    """The origin that was only counted, if another word at a place changes the token of that number and no other."""
    first = body.blocks[0]

    def tokens(ids: Tensor) -> Tensor | None:
        seen = trace(model, replace(inputs.showing(ids), ids=ids), until=first.module)
        stream = seen.every[-1].stream
        return None if stream is None else batch_first(first, stream.tensor.detach())

    ids = inputs.shown
    before = tokens(ids)
    if before is None or ids.ndim != 2:
        return origin
    for place in sorted({0, 1 % ids.shape[1], ids.shape[1] // 2, ids.shape[1] - 1}):
        others = [x for x in ids.flatten().tolist() if x not in ids[:, place].tolist()]
        after = None if not others else tokens(ids.index_fill(1, torch.tensor([place], device=ids.device), others[0]))
        changed = [] if after is None else (after != before).flatten(2).any(dim=-1).any(dim=0).nonzero()[:, 0].tolist()
        if changed not in ([], [place]):
            return f"another word at place {place} of the text changes tokens {changed[:6]} of the blocks"
    return origin


def _unmoved(origin: Origin, model: nn.Module, inputs: Inputs, body: Body) -> Origin | str:
    """The origin, if tokens of another input come from the same places: an order of their own would be no structure."""
    other, first = other_input(inputs), body.blocks[0]
    torch.rand(1)  # the pass that is compared with began where random numbers begin now
    seen = trace(model, other, until=first.module)
    stream = seen.every[-1].stream
    arriving = None if stream is None else Arriving(stream, first.batch_first)
    found = origin_of(other, arriving, seen.beginnings, seen.cells_before(seen.clock))
    moved = isinstance(found, Origin) and (found.index, found.grid) != (origin.index, origin.grid)
    if moved or found == SAMPLES_DIFFER:
        return "the order of the tokens changes with the content of the input, or from call to call"
    return origin


def _judged(inputs: Inputs, run: _BlockwiseTrace) -> Structure:
    """The structure that follows from what was seen, or why methods that read attention cannot be used."""
    found = _judged_by_blocks(inputs, run)
    several = _check_lookups(run) if found.refusal is None else None
    return found if several is None else Structure(several, several)


def _judged_by_blocks(inputs: Inputs, run: _BlockwiseTrace) -> Structure:
    """The same by the order of tokens alone."""
    origin = origin_of(inputs, run.arriving, run.seen.beginnings, run.seen.cells_before(run.begin))
    blocks, answer, real = run.blocks, run.answer, inputs.attention_mask
    if not blocks or any(len(block.calls) != 1 or block.arriving is None for block in blocks):
        unknown = "attention rows are taken for tokens in order: the blocks are not known"
        return Structure(origin, None if blocks else _check_calls(run, inputs.batch), (unknown,))
    flat = [x for block in blocks if (x := block.arriving) is not None and x.tensor.ndim < 3]
    if flat:
        return Structure(origin, tokens.flattened(flat[0]))
    assumed: list[str] = []
    refusal, used, together = None, 0, "the blocks have no gradient"
    if not _attached(run):
        refusal = tokens.find_disorder(blocks, inputs.batch, assumed)
    else:
        counting = _counting(run)
        read = _read_places(run, [answer, *(x for one in counting for x in one.operands)])
        used = max((index for index, rows in enumerate(read) if bool(rows.any())), default=len(blocks))
        refusal = (
            _outside(run, len(counting))
            or tokens.check_samples(answer, blocks[-1], counting, inputs.batch)
            or tokens.check_order(blocks, run.order)
        )
        if refusal is None and not tokens.are_in_order(blocks, inputs.batch, real):
            refusal = (
                tokens.check_sequence(blocks, read[1:], real)
                or tokens.find_disorder(blocks, inputs.batch, assumed)
                or tokens.check_beside(blocks)
            )
        refusal = refusal or _check_read(read[: used + 1])
        together = _together(run, blocks[: used or None])
    last = blocks[-1].leaving
    if refusal is None and last is not None:
        after = batch_first_state(last, first=blocks[-1].part.batch_first)
        refusal = find_unseen_mixing(answer, [after], run.seen.runs_after(run.end))
    conditional = used < len(blocks) and _may_read_more(run) if used else False
    return Structure(origin, refusal, tuple(dict.fromkeys(assumed)), used, together, conditional=conditional)


def _check_lookups(run: _BlockwiseTrace) -> str | None:
    """Return why a token shows more than its own word; None if words are looked up where the tokens begin alone."""
    ids = None if run.seen.inputs is None else run.seen.inputs.ids
    if ids is None:
        return None
    lookups = [x for x in run.seen.every if isinstance(x.module, nn.Embedding) and x.gave_node is not None]
    given = {x for x in lookups if x.first is not None and is_same(x.first, ids)}
    tables = {x.module for x in given}
    entering = node_of(run.blocks[0].arriving) if run.blocks else None
    for x in lookups:
        if x.module not in tables or x.first is None:
            continue
        if x not in given and len(x.first) == len(ids) and bool(torch.isin(x.first, ids).all()):
            ends = [run.answer, *(block.arriving for block in run.blocks)]
            if reached(list(map(node_of, ends)), {x.gave_node}):
                return refusals.asked_again(x.first)
        beside = entering is not None and x.gave_node is not entering
        if beside and x.gave_node in reached([node_of(run.answer)], {entering, x.gave_node}):
            return "the answer reads the table of words beside the blocks"
    return None


def _may_read_more(run: _BlockwiseTrace) -> bool:
    """Return True if the answer is made of what the last block gives, though it does not depend on it here."""
    node = node_of(run.blocks[-1].leaving)
    return node is not None and bool(reached([node_of(run.answer)], {node}))


def _cut_by_detaching(run: _BlockwiseTrace) -> str | None:
    """Return why gradients of the model leave out some of what it computes; None if they do not."""
    seen, blocks = run.seen, run.blocks
    words = seen.beginnings
    outside = [one.output for one in run.outside]
    read = [x for one in run.outside for x in (*one.operands, one.uncut)]
    parts: list[tuple[str, Sequence[Known], Sequence[Known]]]
    if not blocks:
        parts = [("the model", [run.answer, *read], [*outside, *words])]
    else:
        parts = [("what enters the first block", [blocks[0].arriving], words)]
        for index, block in enumerate(blocks):
            if index:  # what runs between two blocks, as a layer whose attention is not recognised
                earlier = [one.leaving for one in blocks[:index]]
                parts.append((f"what enters block {index} of {len(blocks)}", [block.arriving], earlier))
            own = [x for one in block.calls for x in (*one.operands, one.uncut)]
            places = [block.arriving, *(one.output for one in block.calls)]
            parts.append((f"block {index} of {len(blocks)}", [block.leaving, *own], places))
    cut = next((name for name, results, places in parts if seen.detached.cut(results, places)), None)
    # Where nothing arrives from the answer, the target says so.
    last = blocks[-1].leaving if blocks else None
    if cut is None and blocks and seen.detached.cut([run.answer, *read], [last], partly=True):
        cut = "what follows the last block"
    return None if cut is None else refusals.detached(cut)


def _check_calls(run: _BlockwiseTrace, batch: int) -> str | None:
    """Return why attention calls of a model without blocks do not tell what it looked at; None if they do."""
    refusal = tokens.check_chain(run.outside, batch)
    last = run.outside[-1] if run.outside else None
    if refusal is not None or last is None or last.output is None or tokens.straight_shape(last, batch) is None:
        return refusal
    state = result_state(last.output, last.order, batch)
    return find_unseen_mixing(run.answer, [state], run.seen.runs_after(run.end))


def _together(run: _BlockwiseTrace, blocks: Sequence[TracedBlock]) -> str | None:
    """Return why the blocks cannot be differentiated one by one; None if they can."""
    entering = [node_of(block.arriving) for block in blocks]
    for index, block in enumerate(blocks):
        own, earlier = entering[index], {node for node in entering[:index] if node is not None}
        ends = [node_of(block.leaving), *(node_of(x) for one in block.calls for x in one.operands)]
        if reached(ends, earlier | {own}) & earlier:
            return f"block {index} reads what earlier blocks have kept beside the stream"
    last = node_of(blocks[-1].leaving)
    places = {node for x in (blocks[0].arriving, *(block.leaving for block in blocks)) if (node := node_of(x))}
    before = reached([node_of(run.answer)], places) - {last}
    beside = [x for block in blocks if block.run is not None for x in block.run.beside]
    leaving, arriving = [block.leaving for block in blocks], [block.arriving for block in blocks]
    return _check_borders(leaving, arriving, beside, before=bool(before))


def _check_borders(
    leavings: list[State | None], arrivings: list[State | None], beside: list[Tensor], *, before: bool
) -> str | None:
    """Return why the blocks cannot be differentiated one by one; None if they can.

    Args:
        leavings: what each block gave.
        arrivings: what each block was given as the stream.
        beside: the other tensors of real numbers that the blocks were given.
        before: whether the answer reads what a block before the last gives, other than by way of later blocks.
    """
    if before:
        return "the answer reads what earlier blocks give beside the last"
    for index, (given, next_read) in enumerate(zip(leavings, arrivings[1:], strict=False)):
        if given is None or next_read is None or given.tensor is not next_read.tensor or given.edge != next_read.edge:
            return f"block {index + 1} reads something else than what block {index} gives"
    given = {node for x in leavings if (node := node_of(x)) is not None}
    return "blocks read what others give beside the stream" if reached(list(map(node_of, beside)), given) else None


def _attached(run: _BlockwiseTrace) -> bool:
    """Return True if all blocks have a graph. Where one has none, methods that read gradients say so themselves."""
    given = [run.answer, *(block.leaving for block in run.blocks)]
    given += [call_result(one.call) for block in run.blocks for one in block.calls]
    return all(x is not None and x.requires_grad for x in given)


def _read_places(run: _BlockwiseTrace, ends: Sequence[Tensor]) -> list[Tensor]:
    """The tokens `[b, t]` that the answer reads, other than by attention in later blocks.

    Of what enters the first block, then of what each block gives.

    Args:
        ends: the answer, and what attention between the last block and it reads.
    """
    first = run.blocks[0]
    states = [(first, first.arriving), *((block, block.leaving) for block in run.blocks)]
    known = [x for _, x in states if x is not None and x.requires_grad]
    ends = [x for x in ends if x.requires_grad]
    seeds = [torch.randn(x.shape, generator=torch.Generator().manual_seed(n)).to(x) for n, x in enumerate(ends)]
    grads = iter(torch.autograd.grad(ends, list(map(in_graph, known)), seeds, retain_graph=True, allow_unused=True))
    read = []
    for block, x in states:
        gradient = next(grads) if x is not None and x.requires_grad else None
        if gradient is None:
            assert x is not None
            read.append(block.by_sample(torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.tensor.device)))
        else:
            read.append(block.by_sample(gradient.ne(0).any(dim=-1)))
    return read


def _check_read(read: list[Tensor]) -> str | None:
    """Return why a walk from the last block would miss what the answer reads before it; None if it would not."""
    *before, last = read
    for index, rows in reversed(list(enumerate(before))):  # what is read after a block is made of what enters it
        more = rows & ~last if rows.shape == last.shape else rows
        if bool(more.any()):
            where = f"before block {index}" if index == 0 else f"after block {index - 1}"
            count = int(more.flatten(1).sum(dim=1).max())
            return (
                f"the answer reads {count} tokens {where} beside the {int(last[0].sum())} it reads after "
                f"block {len(before) - 1}, so walking from there alone would miss them. {refusals.AT_THE_INPUTS}"
            )
    return None


def _counting(run: _BlockwiseTrace) -> list[TracedCall]:
    """The attention calls outside of the blocks that read what these give, or the input, and that the answer reads."""
    streams = [x for block in run.blocks for x in (block.arriving, block.leaving)]
    roots = {node for x in (*streams, *run.seen.beginnings) if (node := node_of(x)) is not None}
    ends = [run.answer, *(block.arriving for block in run.blocks)]
    ends += [x for block in run.blocks for one in block.calls for x in one.operands]
    counting: list[TracedCall] = []
    for one in reversed(run.outside):
        read, gave = list(map(node_of, one.operands)), node_of(one.output)
        if not roots or not reached(read, roots):
            continue
        if gave is None or reached(list(map(node_of, ends)), {gave}):
            counting.append(one)
            ends += one.operands
    return counting[::-1]


def _outside(run: _BlockwiseTrace, counting: int) -> str | None:
    """Return why attention outside the blocks makes what the blocks show incomplete; None if it does not."""
    pools = 1 if run.body.pool is not None else 0
    if counting <= pools:
        return None
    return (
        f"{counting - pools} attention calls outside the blocks work on what the {len(run.blocks)} blocks of the "
        f"{run.body.anatomy.name} anatomy give, or beside them on the input, so walking through the blocks alone would "
        "miss them. Models with several streams of tokens (encoder and decoder, pictures and text) are not walked yet. "
        f"{refusals.AT_THE_INPUTS}"
    )


def no_origin(why: str, body: Body) -> SeamError:
    """Return the error for tokens that come from no known part of the input."""
    if body.idle and body.blocks:
        return refusals.hybrid(len(body.blocks), body.idle, why)
    return SeamError(
        f"which token comes from which part of the input is not known: {why}. A map would have to guess where its "
        "scores belong."
    )
