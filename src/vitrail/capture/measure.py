"""What a model does with its tokens, measured on the model.

Three questions are asked of every model and every form of input, once:

* Does it have one sequence of tokens, or several streams?
* Which part of the input does each token of the blocks come from: which patch, which word, or none (class tokens,
  registers, soft prompts)?
* Does row i of every attention call belong to token i of its block? Windows, packing and shuffled tokens look alike
  from outside.

The answers come from coded gradients.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.capture import refusals, streams, token_order, unseen_mixing
from vitrail.capture.checkpointed import keep_saved
from vitrail.capture.coded_gradients import CheapProjections, EvenMaxima, call_result, with_heads
from vitrail.capture.cut_pass import cut_pass
from vitrail.capture.detached import KeepDetached, leaf_of
from vitrail.capture.discovery import POOL, SELF, Discovery, discover
from vitrail.capture.executions import node_of, reached, start_graph
from vitrail.capture.hooks import replaced_stream, with_stream_of
from vitrail.capture.layers import batch_first
from vitrail.capture.origin import SAMPLES_DIFFER, Origin, origin_of, other_input
from vitrail.capture.outputs import read_output, run_model
from vitrail.capture.recompute import check_borders
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.seams.call import first_tensor
from vitrail.capture.shadow import autograd, hooks, in_precision, memory_of, remembered
from vitrail.capture.structure.cache import NO_FORM, SAMPLES, InputForm, content_of, form_of
from vitrail.capture.token_order import MeasuredBlock
from vitrail.capture.torch_private import saving_hooks, writes_to
from vitrail.capture.unseen_mixing import ModuleRun, batch_first_state, result_state, runs_after
from vitrail.errors import CutGraphError, SeamError, VitrailError
from vitrail.models.anatomy import Anatomy, Body, known_anatomy
from vitrail.models.inputs import Inputs


@dataclass(frozen=True)
class Structure:
    """What was measured: where tokens come from, and why attention cannot be read token by token, if it cannot."""

    origin: Origin | str
    refusal: str | None = None
    assumed: tuple[str, ...] = ()
    used: int = 0  # how many of the blocks the answer depends on; those after them take no part
    together: str | None = "the blocks are not known"  # why they cannot be differentiated one by one; None if they can
    no_gradient: str | None = None  # why the model cannot be differentiated, if it cannot
    conditional: bool = False  # whether the answer may depend on more blocks for another input
    form: InputForm = NO_FORM  # of the inputs it holds for
    writes: bool = False  # whether the model writes into what enters a block, or into what the last one gives


@dataclass
class _Seen:
    """What was kept of the pass that is measured."""

    blocks: list[MeasuredBlock]
    arriving: Tensor | None = None  # the tokens that enter the first block (or attention), with the graph below them
    source: Tensor | None = None  # the picture or the word embeddings they come from
    others: list[Tensor] = field(default_factory=list)  # what other tables make of the same words
    cells: list[Tensor] = field(default_factory=list)  # feature maps [b, c, y, x] between the two
    outside: list[AttentionCall] = field(default_factory=list)
    cuts: list[Tensor] = field(default_factory=list)  # where the graph is cut: before each block and after the last
    here: int | None = None
    order: list[int] = field(default_factory=list)  # the blocks as they were called
    answer: Tensor | None = None
    shallow: bool = False  # whether the pass ends where the first block begins
    saving: object = None  # how operations save tensors outside of checkpointed regions
    checkpointed: bool = False
    muted: bool = False  # whether gradients end at what attention gives
    after: list[ModuleRun] = field(default_factory=list)  # the modules that ran after the last block
    detached: KeepDetached = field(default_factory=KeepDetached)
    handed: list[tuple[Tensor, int]] = field(default_factory=list)
    """The copies that the model went on from at the cuts, and how often each had been written to then."""

    def release(self) -> None:
        """Free all tensors: graphs that lead to what hooks kept of them would hold each other for ever."""
        vars(self).update(vars(_Seen([])))


def measure_structure(
    model: nn.Module, inputs: Inputs, body: Body, form: InputForm, *, most: int = SAMPLES
) -> Structure:
    """What is measured of a model whose attention and weights can be read, on this many samples at most."""
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


def _measured(model: nn.Module, some: Inputs, body: Body, *, kept: bool = False) -> Structure:
    """What one pass shows, in which results of attention are cut from the graph.

    Args:
        kept: whether the shadow saves what checkpointed regions would run again.
    """
    given = some
    # Half precision has too few exponents for the codes.
    dtype = torch.float32 if any(p.dtype is torch.float16 for p in model.parameters()) else None
    some = some if dtype is None else some.cast(dtype)
    seen = _Seen([MeasuredBlock() for _ in body.blocks], saving=saving_hooks())
    with autograd(gradients=True), torch.random.fork_rng(devices=[]):
        some = _with_source(some, seen)
        own = partial(torch.autocast, some.shown.device.type, enabled=False) if dtype is not None else nullcontext
        with in_precision(model, dtype), _watching(model, some, body, seen), own():
            output = run_model(model, some)
        seen.answer = read_output(output, span=body.anatomy.span, encodings=body.encodings).logits  # detaches nothing
        if seen.checkpointed and not kept:
            # Recomputed in the backward pass, after the hooks are gone: run it as if it were not.
            keep_saved(model)
            return _measured(model, given, body, kept=True)
        cut = _cut_by_detaching(seen)
        writes = any(writes_to(x) != before for x, before in seen.handed)
        judged = replace(_judged(some, body, seen), no_gradient=cut, writes=writes)
        seen.release()
        if not isinstance(judged.origin, Origin) or not body.blocks:
            return judged
        check = _unmoved if judged.origin.measured or some.signal else counted_origin
        with in_precision(model, dtype), own():
            return replace(judged, origin=check(judged.origin, model, some, body))


def _entering(model: nn.Module, inputs: Inputs, body: Body) -> tuple[Inputs, _Seen]:
    """What is seen of a pass that ends where the first block begins."""
    seen = _Seen([MeasuredBlock() for _ in body.blocks], saving=saving_hooks(), shallow=True)
    inputs = _with_source(inputs, seen)
    with _watching(model, inputs, body, seen), suppress(_Enough):
        run_model(model, inputs)
    return inputs, seen


def counted_origin(origin: Origin, model: nn.Module, inputs: Inputs, body: Body) -> Origin | str:
    """The origin that was only counted, if another word at a place changes the token of that number and no other."""

    def tokens(ids: Tensor) -> Tensor | None:
        stream = _entering(model, replace(inputs.showing(ids), ids=ids), body)[1].arriving
        return None if stream is None else batch_first(body.blocks[0], stream.detach())

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
    other, seen = _entering(model, other_input(inputs), body)
    found = _origin(other, body, seen)
    moved = isinstance(found, Origin) and (found.index, found.grid) != (origin.index, origin.grid)
    if moved or found == SAMPLES_DIFFER:
        return "the order of the tokens changes with the content of the input, or from call to call"
    return origin


class _Enough(Exception):
    """The tokens have reached the first block."""


def _with_source(inputs: Inputs, seen: _Seen) -> Inputs:
    """The inputs with a picture, or embeddings, that gradients can be taken at."""
    if not inputs.shown.is_floating_point():
        return inputs
    if inputs.signal and inputs.shown.ndim < 5:  # every number is a place of its own
        seen.source = inputs.shown.detach()[..., None].clone().requires_grad_()
        return inputs.showing(seen.source[..., 0])
    seen.source = inputs.shown.detach().clone().requires_grad_()
    return inputs.showing(seen.source)


@contextmanager
def _watching(model: nn.Module, inputs: Inputs, body: Body, seen: _Seen) -> Iterator[None]:
    """Keep the operands of every attention call; let each block start from tensors of its own."""

    def emit(call: AttentionCall) -> None:
        if not torch.is_grad_enabled() and (seen.here is not None or not body.blocks):
            raise refusals.no_graph(f"attention layer {seen.here or 0}", refusals.why_no_gradient())
        if not body.blocks and seen.arriving is None and call.value is not None:
            seen.arriving = with_heads(call.value, inputs.batch)  # one row for each token, as a block would show
        (seen.outside if seen.here is None else seen.blocks[seen.here].calls).append(call)

    def mute(out: Tensor, _: tuple[int, ...]) -> Tensor:
        if out.requires_grad:
            out.register_hook(lambda given: torch.zeros_like(given) if seen.muted and given is not None else None)
        return out

    # A region that is computed again in the backward pass has to save the same tensors both times.
    with (
        hooks(_stations(model, inputs, body, seen)),
        CheapProjections(lambda: seen.here is not None and saving_hooks() == seen.saving),
        EvenMaxima(),
        attention_calls(emit, safe=True, cut=mute),
        seen.detached,  # entered last
    ):
        yield


def _stations(model: nn.Module, inputs: Inputs, body: Body, seen: _Seen) -> list[RemovableHandle]:
    """Hooks on the blocks, on the tables of words and on what makes feature maps."""
    handles = []
    for index, block in enumerate(body.blocks):
        handles.append(block.module.register_forward_pre_hook(partial(_enter, seen, index), with_kwargs=True))
        handles.append(block.module.register_forward_hook(partial(_leave, seen, index)))
    handles += runs_after(model, seen.after, partial(_past_blocks, seen))
    modules = list(model.modules())
    if inputs.ids is not None:
        words = partial(_words, seen, inputs.ids)
        handles += [table.register_forward_hook(words) for table in modules if isinstance(table, nn.Embedding)]
    if inputs.kind == "image" or inputs.signal:
        handles += [leaf.register_forward_hook(partial(_cells, seen)) for leaf in modules if not leaf._modules]
    return handles


def _enter(seen: _Seen, index: int, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    seen.here = index
    seen.order.append(index)
    seen.checkpointed |= saving_hooks() != seen.saving

    def cut(stream: Tensor) -> Tensor:
        if index == 0 and seen.arriving is None:
            seen.arriving = stream
            if seen.shallow:
                raise _Enough
        block = seen.blocks[index]
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x is not stream]
        block.arriving, block.beside = stream, [x for x in given if x.is_floating_point()]
        block.entering = leaf = leaf_of(stream)
        return _handed(seen, leaf)

    return replaced_stream(args, kwargs, cut)


def _leave(seen: _Seen, index: int, module: nn.Module, args: tuple, out: Any) -> Any:  # noqa: ANN401
    seen.here = None
    stream = first_tensor(out)
    seen.blocks[index].leaving = stream
    if index < len(seen.blocks) - 1 or not isinstance(stream, Tensor):
        return None
    return with_stream_of(out, _handed(seen, leaf_of(stream)))


def _handed(seen: _Seen, leaf: Tensor) -> Tensor:
    """Cut the graph at a leaf. The model goes on from a copy of it, because it may write into that."""
    copy = leaf.clone()
    seen.cuts.append(leaf)
    seen.handed.append((copy, writes_to(copy)))
    return copy


def _past_blocks(seen: _Seen) -> bool:
    """Return True once the last block has run, or the first attention where there are no blocks."""
    return len(seen.cuts) > len(seen.blocks) if seen.blocks else bool(seen.outside)


def _words(seen: _Seen, ids: Tensor, module: nn.Module, args: tuple, out: Tensor) -> Tensor | None:
    given = args[0] if args else None
    if not isinstance(given, Tensor) or given.shape != ids.shape or not bool((given == ids).all()):
        return None
    if seen.source is not None:
        seen.others += [out] if start_graph(module, out) else []
        return None
    seen.source = leaf_of(out)
    return seen.source.clone()  # models may write into what the table gave


def _cells(seen: _Seen, module: nn.Module, args: tuple, out: Any) -> None:  # noqa: ANN401
    if seen.arriving is None and isinstance(out, Tensor) and out.ndim == 4 and out.is_floating_point():
        seen.cells.append(out)


def _judged(inputs: Inputs, body: Body, seen: _Seen) -> Structure:
    """The structure that follows from what was seen, or why methods that read attention cannot be used."""
    origin = _origin(inputs, body, seen)
    if not body.blocks or any(len(block.calls) != 1 or block.entering is None for block in seen.blocks):
        unknown = "attention rows are taken for tokens in order: the blocks are not known"
        return Structure(origin, None if body.blocks else _check_calls(seen, inputs.batch), (unknown,))
    flat = [x for block in seen.blocks if (x := block.entering) is not None and x.ndim < 3]
    if flat:
        return Structure(origin, token_order.flattened(flat[0]))
    assumed: list[str] = []
    refusal, used, together = None, 0, "the blocks have no gradient"
    if _attached(seen):
        read = _read_places(body, seen)
        used = max((index for index, rows in enumerate(read) if bool(rows.any())), default=len(body.blocks))
        refusal = (
            _outside(body, seen)
            or token_order.check_samples(seen.answer, seen.cuts[-1], body)
            or token_order.check_sequence(seen.blocks, body, read[1:], order=seen.order, real=inputs.attention_mask)
            or _check_read(read[: used + 1])
        )
        together = _together(seen.blocks[: used or None], before=any(bool(rows.any()) for rows in read[:used]))
    refusal = refusal or token_order.check_results(seen.blocks, inputs.batch, body, assumed)
    seen.muted = True
    refusal = refusal or token_order.check_tokens(seen.blocks, inputs.batch, body, assumed)
    if refusal is None and seen.answer is not None and len(seen.cuts) > len(seen.blocks):
        after = batch_first_state(seen.cuts[-1], first=body.blocks[-1].batch_first)
        refusal = unseen_mixing.find_unseen_mixing(seen.answer, [after], seen.after)
    conditional = used < len(body.blocks) and _may_read_more(seen) if used else False
    return Structure(origin, refusal, tuple(dict.fromkeys(assumed)), used, together, conditional=conditional)


def _may_read_more(seen: _Seen) -> bool:
    """Return True if the answer is made of what the last block gives, though it does not depend on it here."""
    return seen.answer is not None and seen.answer.requires_grad and _depend([seen.answer], seen.cuts[-1:])


def _cut_by_detaching(seen: _Seen) -> str | None:
    """Return why gradients of the model leave out some of what it computes; None if they do not."""
    sources_of_tokens = [x for x in (seen.source, *seen.others) if x is not None]
    outside = [call_result(call) for call in seen.outside]
    parts: list[tuple[str, Sequence[Tensor | None], Sequence[Tensor | None]]]
    if not seen.blocks:
        parts = [("the model", [seen.answer], [*outside, *sources_of_tokens])]
    else:
        parts = [("what enters the first block", [seen.blocks[0].arriving], sources_of_tokens)]
        for index, block in enumerate(seen.blocks):
            if index:  # what runs between two blocks, as a layer whose attention is not recognised
                earlier = [one.leaving for one in seen.blocks[:index]]
                parts.append((f"what enters block {index} of {len(seen.blocks)}", [block.arriving], earlier))
            places = [block.entering, *map(call_result, block.calls)]
            parts.append((f"block {index} of {len(seen.blocks)}", [block.leaving], places))
    cut = next((name for name, results, places in parts if seen.detached.cut(results, places)), None)
    # Where nothing arrives from the answer, the target says so.
    if cut is None and seen.blocks and seen.detached.cut([seen.answer], seen.cuts[-1:], partly=True):
        cut = "what follows the last block"
    return None if cut is None else refusals.detached(cut)


def _check_calls(seen: _Seen, batch: int) -> str | None:
    """Return why attention calls of a model without blocks do not tell what it looked at; None if they do."""
    refusal = token_order.check_chain(seen.outside, batch)
    last = call_result(seen.outside[-1]) if seen.outside else None
    if refusal is not None or last is None or seen.answer is None or last.shape[0] % batch:
        return refusal
    return unseen_mixing.find_unseen_mixing(seen.answer, [result_state(last, batch)], seen.after)


def _together(blocks: list[MeasuredBlock], *, before: bool) -> str | None:
    """Why the blocks cannot be differentiated one by one; None if they can."""
    for index, block in enumerate(blocks):  # each starts from a leaf of its own, whatever it shares with others
        earlier = {node for one in blocks[:index] if (node := node_of(one.entering)) is not None}
        if earlier and reached([node_of(block.leaving)], earlier):
            return f"block {index} reads what earlier blocks have kept beside the stream"
    leaving, arriving = [block.leaving for block in blocks], [block.arriving for block in blocks]
    return check_borders(leaving, arriving, [block.beside for block in blocks], before=before)


def _attached(seen: _Seen) -> bool:
    """Whether all blocks have a graph. Where one has none, methods that read gradients say so themselves."""
    given = [seen.answer, *(block.leaving for block in seen.blocks)]
    given += [call_result(call) for block in seen.blocks for call in block.calls]
    return all(isinstance(x, Tensor) and x.requires_grad for x in given)


def _read_places(body: Body, seen: _Seen) -> list[Tensor]:
    """The tokens `[b, t]` that the answer depends on other than by way of later blocks.

    Of what enters the first block, then of what each block gives.
    """
    assert seen.answer is not None
    first, last = seen.blocks[0], seen.blocks[-1]
    between = [block.leaving for block in seen.blocks[:-1]]
    given = [first.arriving, *between, seen.cuts[-1], last.leaving, first.entering]
    places = [x for x in given if x is not None]
    seed = torch.randn(seen.answer.shape, generator=torch.Generator().manual_seed(0)).to(seen.answer)
    wanted = [x for x in places if x.requires_grad]
    found = iter(torch.autograd.grad(seen.answer, wanted, seed, retain_graph=True, allow_unused=True))
    grads = [next(found) if x.requires_grad else None for x in places]
    parts = (body.blocks[0], *body.blocks, body.blocks[-1], body.blocks[0])
    *read, given_last, entering = [
        batch_first(part, torch.zeros_like(x) if g is None else g).ne(0).any(dim=-1)
        for part, x, g in zip(parts, places, grads, strict=True)
    ]
    read[-1] = read[-1] | given_last  # hooks of the model's own may have kept what the last block gave
    alone = len(read) == 2
    if not bool(read[1].any()) or alone:  # not by way of the first block: hooks may have kept what enters it
        read[0] = read[0] | (_past(first, grads[-1], grads[-2], body) if alone and bool(given_last.any()) else entering)
    return read


def _past(block: MeasuredBlock, total: Tensor | None, given: Tensor | None, body: Body) -> Tensor:
    """The tokens of what enters the only block that the answer reads other than by what the block gives.

    The gradient of the answer is `total` at what enters and `given` at what the block gives.
    """
    entering, leaving = block.entering, block.leaving
    if entering is None or leaving is None or total is None:
        return torch.zeros((), dtype=torch.bool)
    (through,) = torch.autograd.grad(leaving, entering, given, retain_graph=True, allow_unused=True)
    rest = total if through is None else total - through
    return batch_first(body.blocks[0], rest.abs() > 1e-4 * total.abs().amax()).any(dim=-1)


def _check_read(read: list[Tensor]) -> str | None:
    """Why a walk that starts after the last block would miss what the answer reads before it; None if it would not."""
    *before, last = read
    for index, rows in enumerate(before):
        if rows.shape != last.shape or bool((rows & ~last).any()):
            where = f"before block {index}" if index == 0 else f"after block {index - 1}"
            return (
                f"the answer reads {int(rows[0].sum())} tokens {where} beside the {int(last[0].sum())} it reads after "
                f"block {len(before) - 1}, so walking from there alone would miss them. {refusals.AT_THE_INPUTS}"
            )
    return None


def _outside(body: Body, seen: _Seen) -> str | None:
    """Why attention outside the blocks makes what the blocks show incomplete; None if it does not."""
    pools = 1 if body.pool is not None else 0
    roots = [*seen.cuts, *seen.others, *([] if seen.source is None else [seen.source])]
    ends = [x for x in (seen.answer, *(block.arriving for block in seen.blocks)) if x is not None and x.requires_grad]

    def counts(call: AttentionCall) -> bool:
        read = [x for x in (call.query, call.key, call.value, call.weights) if x is not None and x.requires_grad]
        gave = [x for x in (call.weights, call.output) if x is not None and x.requires_grad]
        if not read or not roots or not _depend(read, roots):
            return False
        return not gave or not ends or _depend(ends, gave)  # where there are none, nothing shows that it does not

    counting = list(filter(counts, seen.outside))
    if len(counting) <= pools:
        return None
    return (
        f"{len(counting) - pools} attention calls outside the blocks work on what the {len(body.blocks)} blocks of the "
        f"{body.anatomy.name} anatomy give, or beside them on the input, so walking through the blocks alone would "
        "miss them. Models with several streams of tokens (encoder and decoder, pictures and text) are not walked yet. "
        f"{refusals.AT_THE_INPUTS}"
    )


def _depend(ends: list[Tensor], starts: list[Tensor]) -> bool:
    """Whether any of some tensors depends on any of others."""
    seeds = [torch.ones_like(x) for x in ends]
    return any(g is not None for g in torch.autograd.grad(ends, starts, seeds, retain_graph=True, allow_unused=True))


def _origin(inputs: Inputs, body: Body, seen: _Seen) -> Origin | str:
    """Where the tokens of the first layer come from, or why that is not known."""
    stream = seen.arriving if not body.blocks or seen.arriving is None else batch_first(body.blocks[0], seen.arriving)
    return origin_of(inputs, stream, seen.source, seen.cells)


def no_origin(why: str, body: Body) -> SeamError:
    """What to say where tokens come from no known part of the input."""
    if body.idle and body.blocks:
        return refusals.hybrid(len(body.blocks), body.idle, why)
    return SeamError(
        f"which token comes from which part of the input is not known: {why}. A map would have to guess where its "
        "scores belong."
    )


CUT_PASS = "cut pass"
"""Under this name a call remembers the streams of a pass whose results are cut, and the inputs of that pass."""
SECOND = ("decoder_input_ids", "decoder_inputs_embeds", "input_features")
"""Arguments of models with more than one sequence of tokens."""
LOOKED_AT = {"input_ids", "pixel_values", "visual_embeds", "image_patches", "input_features"}
"""Arguments that are parts of one sequence where a model has no other for them."""


def has_streams(model: nn.Module, inputs: Inputs, given: Anatomy | None) -> bool:
    """Whether a shadow has several streams, measured where its family or its inputs leave that open."""
    if given is not None:  # the anatomy that the user named says that there is one stream
        return False
    form = form_of(inputs).keys[0]
    return remembered.get(model, "has streams", form, lambda: _measured_or_known(model, inputs))


def _measured_or_known(model: nn.Module, inputs: Inputs) -> bool:
    """Whether there are several streams; where that cannot be measured, a model of a known family has one."""
    try:
        if known_anatomy(model) is None:
            return _has_several(model, inputs)
        return _may_have(model, inputs) and _several(model, inputs)
    except SeamError:
        return known_anatomy(model) is None


def _has_several(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if a model of no known family has several streams."""
    may_have, several = _may_have(model, inputs), None
    if may_have:
        with suppress(SeamError):  # such as queries of frozen weights, without a graph: blocks are sought all the same
            several = _several(model, inputs)
    if several:
        return True
    try:
        found = discover(model, inputs)
    except CutGraphError:
        return False  # the pass over one stream says so
    if _single(found):
        return False
    # Tokens in several axes, several copies of them (series by channel, AltUp), and those of all samples in one axis
    # are numbered by the streams.
    return may_have or _several(model, inputs) or any(len(block.shape) != 2 for block in found.blocks)


def _several(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if tokens are not those of one sequence in order, which a query may pool at the end.

    The pass that was measured is kept for the call that explains them.
    """
    with cut_pass(model, inputs, streams.measured) as found:
        plain = found.is_plain(pooled=False) or found.is_plain(pooled=True)
    several = not plain or len(LOOKED_AT & inputs.kwargs.keys()) > 1
    if several:
        memory_of(model).call[CUT_PASS] = inputs, found
    return several


def _pools(found: Discovery) -> bool:
    """Whether the last call is a pooling query, used or not."""
    return bool(found.calls) and found.calls[-1].kind == POOL


def _single(found: Discovery) -> bool:
    """Whether every call is self-attention of all tokens of its block, and all blocks work on tokens of one shape."""
    if not found.calls:
        return True
    last = len(found.calls) - _pools(found)
    rows = {call.queries for call in found.calls[:last]}
    own = all(call.kind == SELF and not call.transition for call in found.calls[:last])
    shapes = {block.shape for block in found.blocks}
    plain = len(shapes) == 1 and all(len(shape) == 2 for shape in shapes)
    return own and len(rows) == 1 and plain and rows == {next(iter(shapes))[0]}


def _may_have(model: nn.Module, inputs: Inputs) -> bool:
    """Whether the modules, the configuration or the inputs of a model are those of several streams."""
    config = getattr(model, "config", None)
    kinds = {getattr(vars(module).get("config"), "model_type", None) for module in model.modules()}
    if "clip" in kinds:  # its towers do not meet: the picture is explained for the texts
        return False
    decodes = any(isinstance(module, nn.TransformerDecoderLayer) for module in model.modules())
    nested = any(getattr(config, name, None) is not None for name in ("vision_config", "encoder", "audio_config"))
    given = len(LOOKED_AT & inputs.kwargs.keys()) > 1 or any(name in inputs.kwargs for name in SECOND)
    return given or decodes or nested or bool(getattr(config, "is_encoder_decoder", False))
