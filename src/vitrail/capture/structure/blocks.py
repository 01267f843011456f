"""The blocks of a model of no known family, found in a pass; and its parts, for the passes that explain."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.checkpointed import without_recomputation
from vitrail.capture.copying import copied
from vitrail.capture.graph_nodes import Node, from_data, node_of, reached
from vitrail.capture.outputs import LOGITS, named, read_output, run_model
from vitrail.capture.refusals import AT_THE_INPUTS, check_model, no_attention, no_graph
from vitrail.capture.seams import AttentionCall
from vitrail.capture.seams.call import call_shape, tensors_in
from vitrail.capture.shadow import autograd, once, remembered
from vitrail.capture.structure.cache import form_of
from vitrail.capture.structure.parts import PARTS, PartNames, find_parts
from vitrail.capture.structure.texts import as_it_was, part_of_text
from vitrail.capture.structure.trace import Execution, TracedCall, TracedPass, trace_few
from vitrail.errors import AnatomyError, OtherBlocksError, SeamError
from vitrail.models.anatomy import (
    ENCODINGS,
    Anatomy,
    Block,
    Body,
    answers_with_span,
    begins_with_mark,
    from_library,
)
from vitrail.models.inputs import Inputs, check_fits
from vitrail.models.taking import every_module, generates

LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
SELF, CROSS, POOL = "self", "cross", "pool"
"""Kinds of attention: tokens among themselves, tokens that read others, learned queries that read tokens."""


@dataclass(frozen=True)
class CallSite:
    """One attention call of the pass, in order of execution."""

    caller: str  # the module that makes the call
    block: str | None  # the block it belongs to; None where there is none
    turn: int  # how often the block's module had run before
    kind: str  # `self`, `cross` or `pool`
    queries: int  # how many query rows there are
    keys: int
    heads: int | None  # None where samples and heads cannot be told apart
    causal: bool  # whether no query sees a key behind it
    by_hand: bool  # whether the model writes the softmax itself
    transition: bool = False  # whether the block changes the shape of its tokens


@dataclass(frozen=True)
class BlockSite:
    """One execution of a block, and the names of its parts."""

    name: str
    turn: int
    calls: tuple[int, ...]  # which of the attention calls are in it
    shape: tuple[int, ...]  # of the tensor that enters it first, samples aside
    batch_first: bool  # whether the first axis of that tensor is samples
    parts: PartNames
    carries: bool = True  # whether the residual stream passes through it, not only what attention reads and gives


@dataclass(frozen=True)
class Discovery:
    """The attention calls and blocks found in one pass, both in order of execution."""

    model: str
    calls: tuple[CallSite, ...]
    blocks: tuple[BlockSite, ...]
    without: tuple[str, ...] = ()  # members of the blocks' lists that ran without attention
    pool: str | None = None
    reads_first: bool = False  # whether the answer reads the first token of the last block and no other

    @property
    def kinds(self) -> Counter[str]:
        """The number of calls of each kind."""
        return Counter(call.kind for call in self.calls)

    @property
    def causal(self) -> bool:
        """Return True if every self-attention is causal."""
        own = [call for call in self.calls if call.kind == SELF]
        return bool(own) and all(call.causal for call in own)


def discover(model: nn.Module, inputs: Inputs) -> Discovery:
    """Return the blocks and attention calls of a shadow for inputs of this form; found once, then remembered."""
    part = part_of_text(inputs)  # all tokens of a long text at once would take more memory than the explanation
    if part is not None and not remembered.get(
        model, "switches", form_of(part).keys[0], lambda: _switches(model, part)
    ):
        found = discover(model, part)
        if found.causal:
            return found

    def measure() -> Discovery:
        check_fits(model, inputs)
        check_model(model)
        with autograd(gradients=True):  # whatever the caller's own setting
            return without_recomputation(model, lambda: discovered(model, trace_few(model, inputs)))

    return remembered.get(model, "blocks", form_of(inputs).keys[0], measure)


def forget(model: nn.Module) -> None:
    """Forget the blocks of a shadow, and all that was measured of them."""
    remembered.forget(model)
    for module in every_module(model):
        made, handle = vars(module).pop("_each_time", ((), None))
        if handle is not None:
            handle.remove()
            del vars(module)["forward"]
        for index in range(len(made)):
            delattr(module, f"time_{index}")


def _switches(model: nn.Module, part: Inputs) -> bool:
    """Return True if a model changes its own settings or modules on a part of a text."""
    with as_it_was(model) as changed:
        discover(model, part)
    return bool(changed)


def discovered(model: nn.Module, seen: TracedPass) -> Discovery:
    """The attention calls and the blocks of a pass."""
    cuts = seen.cuts
    kinds = [_kind(call, cuts) for call in seen.calls]
    _check_graph(seen, kinds)
    chosen = _blocks(model, seen, kinds)
    sites = [_site(*found, seen.batch) for found in zip(seen.calls, kinds, chosen, strict=True)]
    members: dict[Execution, list[int]] = {}
    for index, block in enumerate(chosen):
        if block is not None and kinds[index] != POOL:
            members.setdefault(block, []).append(index)
    blocks = tuple(_block_site(block, calls, seen) for block, calls in members.items())
    pools = [index for index, kind in enumerate(kinds) if kind == POOL]
    pool = chosen[pools[-1]] if pools and pools[-1] == len(kinds) - 1 else None
    pool = pool if pool is not None and _answers_from(pool, seen) else None
    return Discovery(
        type(model).__name__,
        tuple(sites),
        blocks,
        _without(model, seen, list(members)),
        None if pool is None else pool.name,
        pool is None and _reads_first(seen, list(members)),
    )


def _check_graph(seen: TracedPass, kinds: list[str]) -> None:
    """Refuse a pass in which nothing that attention reads or gives depends on the inputs."""
    if kinds and all(one.no_graph for one in seen.calls):
        raise no_graph("attention layer 0", seen.calls[0].no_graph)
    read = (x for one in seen.calls for x in (one.call.key, one.call.value, one.call.weights))
    if kinds and set(kinds) == {POOL} and not any(from_data(x, seen.cuts) for x in read):
        raise no_graph(
            f"what the {len(kinds)} attention calls read", "kernels without one, as 8-bit kernels are, made it"
        )


def _answers_from(pool: Execution, seen: TracedPass) -> bool:
    """Return True if the answer depends on the output of a pooling attention: some models compute it for nothing."""
    logits = [node_of(x) for x in tensors_in(getattr(seen.answer, "logits", seen.answer))]
    return pool.gave_node is None or not any(logits) or bool(reached(logits, {pool.gave_node}))


def _reads_first(seen: TracedPass, blocks: list[Execution]) -> bool:
    """Return True if the answer depends on the first token of the last block's output, and on no other."""
    given = blocks[-1].gave if blocks else None
    answer = named(seen.answer, LOGITS)
    answer = seen.answer if answer is None else answer
    logits = next((x for x in tensors_in(answer) if x.requires_grad and x.ndim > 0), None)
    if given is None or logits is None or not given.requires_grad or logits.is_meta:
        return False
    if given.ndim != 3 or logits.ndim != 2 or logits.shape[0] != seen.batch:
        return False
    seed = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    (gradient,) = torch.autograd.grad(logits, given, seed, retain_graph=True, allow_unused=True)
    if gradient is None:
        return False
    rows = (gradient if given.shape[0] == seen.batch else gradient.transpose(0, 1)).ne(0).any(dim=-1)
    return bool(rows[:, 0].all()) and not bool(rows[:, 1:].any())


def _kind(seen: TracedCall, cuts: set[Node]) -> str:
    """Self-attention if queries and keys come from a common input of a module around the call.

    Args:
        cuts: nodes of what attention gave.
    """
    call = seen.call
    query = call.query if call.query is not None else call.weights
    queries = [node_of(query)]
    keys = [node_of(next((x for x in (call.key, call.value, call.weights) if x is not None), None))]
    if keys[0] is None:
        rows, columns = call_shape(call)
        return SELF if rows == columns else CROSS
    for frame in reversed(seen.stack):
        nodes: set[Node] = {node for node in frame.nodes if node is not None}
        if nodes and reached(queries, nodes) & reached(keys, nodes):
            return SELF
    return CROSS if from_data(query, cuts) else POOL


def _blocks(model: nn.Module, seen: TracedPass, kinds: list[str]) -> list[Execution | None]:
    """The block of each call; None where no execution around it qualifies."""
    held: dict[Execution, Counter[str]] = {}
    for call, kind in zip(seen.calls, kinds, strict=True):
        for frame in call.stack:
            held.setdefault(frame, Counter())[SELF if kind == SELF else CROSS] += 1
    members = {
        id(child) for module in model.modules() if isinstance(module, LISTS) for child in module._modules.values()
    }
    return [
        _alone(call, held) if kind == POOL else _enclosing(call, held, members)
        for call, kind in zip(seen.calls, kinds, strict=True)
    ]


def _enclosing(call: TracedCall, held: dict[Execution, Counter[str]], members: set[int]) -> Execution | None:
    few = [frame for frame in call.stack[1:] or call.stack if held[frame][SELF] <= 1 and held[frame][CROSS] <= 1]
    listed = [frame for frame in few if id(frame.module) in members and not isinstance(frame.module, LISTS)]
    orders = [[x for x in listed if x.keeps_shape], listed, [x for x in few if x.keeps_shape]]
    carrying = [[x for x in order if x.carries] for order in orders]
    return next((order[0] for order in (*carrying, *orders) if order), None)


def _alone(call: TracedCall, held: dict[Execution, Counter[str]]) -> Execution | None:
    """The outermost execution that holds this call and no other."""
    return next((frame for frame in call.stack[1:] if held[frame].total() == 1), None)


def _site(seen: TracedCall, kind: str, block: Execution | None, batch: int) -> CallSite:
    call = seen.call
    queries, keys = call_shape(call)
    some = call.weights if call.weights is not None else call.query
    assert some is not None
    heads = some.shape[1] if some.ndim == 4 else some.shape[0] // batch if some.shape[0] % batch == 0 else None
    return CallSite(
        caller=seen.stack[-1].name if seen.stack else "",
        block=None if block is None else block.name,
        turn=0 if block is None else block.turn,
        kind=kind,
        queries=queries,
        keys=keys,
        heads=heads,
        causal=queries == keys and is_causal(call),
        by_hand=call.weights is not None,
        transition=block is not None and not block.keeps_shape,
    )


def is_causal(call: AttentionCall) -> bool:
    """Return True if no query of a call sees a key behind it."""
    if call.causal:
        return True
    shown = call.weights if call.weights is not None else call.mask
    if shown is None or shown.shape[-1] == 1:
        return False
    if call.weights is None and call.query is not None:  # one row of a mask may stand for all queries
        shown = shown.expand(*shown.shape[:-2], call.query.shape[-2], -1)
    rows, columns = shown.shape[-2:]
    later = torch.ones(rows, columns, dtype=torch.bool, device=shown.device).triu(1 + columns - rows)
    hidden = ~shown if shown.dtype is torch.bool else shown == 0 if call.weights is not None else shown < -1e3
    return bool(hidden.detach()[..., later].all())


def _block_site(block: Execution, calls: list[int], seen: TracedPass) -> BlockSite:
    stream = block.given[0] if block.given else None
    shape = () if stream is None else tuple(stream.shape)
    first = len(shape) < 2 or shape[0] == seen.batch or shape[1] != seen.batch
    parts = find_parts(block, seen.calls[calls[0]], seen, batch_first=first) if len(calls) == 1 else PartNames()
    shape = shape[1:] if first else (*shape[:1], *shape[2:])
    return BlockSite(block.name, block.turn, tuple(calls), shape, first, parts, block.carries)


def _without(model: nn.Module, seen: TracedPass, blocks: list[Execution]) -> tuple[str, ...]:
    """The members of the lists that hold blocks which ran without any attention in them."""
    chosen = {id(block.module) for block in blocks}
    holders = {block.name.rpartition(".")[0] for block in blocks}
    modules = dict(model.named_modules())
    lists = [modules[name] for name in holders if isinstance(modules.get(name), LISTS)]
    beside = {id(child) for module in lists for child in module._modules.values()} - chosen
    attending = {id(frame.module) for call in seen.calls for frame in call.stack}
    return tuple(x.name for x in seen.every if id(x.module) in beside - attending)


SHOWN = 6
"""How many calls a message names."""


def found_body(model: nn.Module, inputs: Inputs) -> Body:
    """The parts of a shadow that is of no known family."""
    found = discover(model, inputs)
    if not found.calls:
        raise no_attention(model)
    check_single(found)
    # Modules that the stream passes by are no blocks: the gradient cannot end before them, nor is the stream in them.
    sites = found.blocks if all(site.carries for site in found.blocks) else ()
    # The last time that the answer was the same with a copy of a block for each time that it runs.
    checked = once(model, "copies", dict[str, Discovery])
    repeats = any(site.turn for site in sites)
    before = _answer(model, inputs) if repeats and checked.get("found") is not found else None
    blocks = tuple(_block(module, site) for module, site in zip(_apart(model, sites), sites, strict=True))
    if before is not None:
        _check_alike(before, _answer(model, inputs), sites)
        checked["found"] = found
    one_token = all(call.queries == call.keys == 1 for call in found.calls)  # which sees no later one in any model
    causal = found.causal or (one_token and generates(model))
    text = not causal and (inputs.ids is not None or inputs.main == "inputs_embeds")
    first = int(text and ((found.reads_first and _first_is_mark(model, inputs)) or begins_with_mark(model)))
    anatomy = Anatomy(
        name=f"measured {found.model}", causal=causal, readout="auto", prefix=first, span=answers_with_span(model)
    )
    pool = None if found.pool is None else model.get_submodule(found.pool)
    idle = tuple(model.get_submodule(name) for name in found.without)
    loose = None if sites else _why_loose(model, found)
    ran = tuple((site.name, site.turn) for site in sites)
    return Body(anatomy, blocks, pool=pool, owner=model, head=None, loose=loose, idle=idle, ran=ran)


def _first_is_mark(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if a text whose answer is read from its first token has a mark there and no word.

    The inputs may say so; else models of transformers have one, and of a model of one's own nothing is known.
    """
    if inputs.special is not None:
        return bool(inputs.special[:, 0].bool().all())
    return any(from_library(module, "transformers") for module in model.modules())


def _why_loose(model: nn.Module, found: Discovery) -> str:
    """Return the reason why no module is a block."""
    names = [site.name for site in found.blocks if not site.carries]
    around = names[0].split(".")[:-1] if names else []
    while around and isinstance(model.get_submodule(".".join(around)), LISTS):
        around.pop()
    adding = type(model.get_submodule(".".join(around))).__name__
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return (
        f"no module is a block: the residual stream passes by {shown}, and the forward of {adding} adds what they "
        "give. To have blocks, write attention, the feed-forward part and their two sums as one module"
    )


def _answer(model: nn.Module, inputs: Inputs) -> Tensor:
    with autograd(gradients=False):
        return read_output(run_model(model, inputs), broken=True, encodings=ENCODINGS).logits


def _check_alike(before: Tensor, after: Tensor, sites: tuple[BlockSite, ...]) -> None:
    """Refuse a block that works differently each time by what it keeps of earlier times: copies cannot know that."""
    if not torch.allclose(before, after, rtol=1e-4, atol=1e-5, equal_nan=True):
        names = sorted({site.name for site in sites if site.turn})
        raise AnatomyError(
            f"the block {', '.join(names)} runs {max(site.turn for site in sites) + 1} times and keeps something from "
            "one time to the next that changes what it gives, so its layers cannot be told apart. Methods that read "
            "the gradient at the inputs need no blocks: integrated_gradients, input_x_gradient."
        )


def check_single(found: Discovery) -> None:
    """Refuse a model that is not one sequence of blocks with one self-attention each."""
    loose = [call for call in found.calls if call.block is None]
    if loose:
        raise SeamError(
            f"{len(loose)} of {len(found.calls)} attention calls of {found.model} are in no block: {_listed(loose)}. A "
            "block is a module that attends once and gives tokens of the shape it was given, as a tensor. Name the "
            "list of blocks: vitrail.Anatomy(blocks=...). Methods that read the gradient at the inputs need no blocks: "
            "integrated_gradients, input_x_gradient."
        )
    cross = [call for call in found.calls if call.kind == CROSS]
    several = [block for block in found.blocks if len(block.calls) > 1]
    if cross or several:
        raise SeamError(
            f"{found.model} has {dict(found.kinds)} attention calls in {len(found.blocks)} blocks, and "
            f"{len(several)} blocks make more than one: {_listed(cross or list(found.calls))}. Models with several "
            f"streams of tokens are not walked yet. {AT_THE_INPUTS}"
        )


def _listed(calls: list[CallSite]) -> str:
    shown = [f"{call.caller} ({call.kind}, {call.queries} queries, {call.keys} keys)" for call in calls[:SHOWN]]
    return ", ".join(shown) + (f" and {len(calls) - SHOWN} more" if len(calls) > SHOWN else "")


def _block(module: nn.Module, site: BlockSite) -> Block:
    paths = {part: getattr(site.parts, part) for part in PARTS}
    parts = {part: None if path is None else module.get_submodule(path) for part, path in paths.items()}
    value = parts["value"]
    return Block(
        module=module,
        **parts,
        value_bias=value.in_proj_bias if isinstance(value, nn.MultiheadAttention) else None,
        attention_scale=None,
        ffn_scale=None,
        batch_first=site.batch_first,
        discovered=True,
        value_channels=site.parts.value_channels,
    )


def _apart(model: nn.Module, sites: tuple[BlockSite, ...]) -> list[nn.Module]:
    """The module of each block. A module that runs several times gets a copy for each time, with the same weights."""
    times: dict[str, int] = {}
    for site in sites:
        times[site.name] = max(times.get(site.name, 0), site.turn + 1)
    copies = {name: _copies(model, name, count) for name, count in times.items()}
    return [copies[site.name][site.turn] for site in sites]


def _copies(model: nn.Module, name: str, count: int) -> list[nn.Module]:
    module = model.get_submodule(name)
    if count == 1:
        return [module]
    kept = vars(module).get("_each_time")
    if kept is not None:
        return kept[0]
    made = [copied(module).root for _ in range(count)]
    for index, one in enumerate(made):
        module.add_module(f"time_{index}", one)
    vars(module)["forward"] = _in_turn(made, name)
    handle = model.register_forward_pre_hook(lambda *_: vars(module).__setitem__("forward", _in_turn(made, name)))
    vars(module)["_each_time"] = made, handle
    return made


def _in_turn(modules: list[nn.Module], name: str) -> Callable[..., Any]:
    """A forward that calls one module after the other."""
    waiting = iter(modules)

    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        module = next(waiting, None)
        if module is None:
            raise OtherBlocksError(
                f"{name} runs more often than the {len(modules)} times that were found on earlier inputs: how often "
                "depends on the content. Explain these inputs with copy.deepcopy(model), of which nothing is known yet."
            )
        return module(*args, **kwargs)

    return forward
