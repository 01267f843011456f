"""A model's parts as they were found in a pass, for the passes that explain."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitrail.capture.copying import copied
from vitrail.capture.discovery import CROSS, LISTS, BlockSite, CallSite, Discovery, discover
from vitrail.capture.outputs import read_output, run_model
from vitrail.capture.refusals import no_attention
from vitrail.capture.shadow import autograd
from vitrail.capture.stream_passes import generates
from vitrail.errors import AnatomyError, SeamError
from vitrail.models.anatomy import Anatomy, Block, Body
from vitrail.models.anatomy.families import answers_with_span, begins_with_mark
from vitrail.models.anatomy.parts import ENCODINGS
from vitrail.models.inputs import Inputs

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
    before = _answer(model, inputs) if any(site.turn for site in sites) and _alike.get(model) is not found else None
    blocks = tuple(_block(module, site) for module, site in zip(_apart(model, sites), sites, strict=True))
    if before is not None:
        _check_alike(before, _answer(model, inputs), sites)
        _alike[model] = found
    # A text whose answer is read from its first token has a mark there, and no word. Of pictures this is measured.
    causal = found.causal or (_one_token(found) and generates(model))
    marked = found.reads_first or begins_with_mark(model)
    first = int(marked and not causal and (inputs.ids is not None or inputs.main == "inputs_embeds"))
    anatomy = Anatomy(
        name=f"measured {found.model}", causal=causal, readout="auto", prefix=first, span=answers_with_span(model)
    )
    pool = None if found.pool is None else model.get_submodule(found.pool)
    idle = tuple(model.get_submodule(name) for name in found.without)
    loose = None if sites else _why_loose(model, found)
    return Body(anatomy, blocks, pool=pool, owner=model, head=None, loose=loose, idle=idle)


def _one_token(found: Discovery) -> bool:
    """Whether there is one token alone, whose attention does not show whether it would see later ones."""
    return all(call.queries == call.keys == 1 for call in found.calls)


def _why_loose(model: nn.Module, found: Discovery) -> str:
    """Why no module is a block."""
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


_alike: "WeakKeyDictionary[nn.Module, Discovery]" = WeakKeyDictionary()
"""What was last found of shadows whose answer is the same with a copy of a block for each time that it runs."""


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
            "streams of tokens are not walked yet. Methods that read the gradient at the inputs need no attention: "
            "integrated_gradients, input_x_gradient."
        )


def _listed(calls: list[CallSite]) -> str:
    shown = [f"{call.caller} ({call.kind}, {call.queries} queries, {call.keys} keys)" for call in calls[:SHOWN]]
    return ", ".join(shown) + (f" and {len(calls) - SHOWN} more" if len(calls) > SHOWN else "")


def _block(module: nn.Module, site: BlockSite) -> Block:
    parts = site.parts

    def part(name: str | None) -> nn.Module | None:
        return None if name is None else module.get_submodule(name)

    value = part(parts.value)
    return Block(
        module=module,
        output=part(parts.output),
        value=value,
        value_bias=value.in_proj_bias if isinstance(value, nn.MultiheadAttention) else None,
        attention_norm=part(parts.attention_norm),
        attention_scale=None,
        ffn_norm=part(parts.ffn_norm),
        ffn_input=part(parts.ffn_input),
        ffn_output=part(parts.ffn_output),
        ffn_scale=None,
        batch_first=site.batch_first,
        attending=part(parts.attending),
        discovered=True,
        value_channels=parts.value_channels,
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
        return kept
    made = [copied(module).root for _ in range(count)]
    for index, one in enumerate(made):
        module.add_module(f"time_{index}", one)
    vars(module)["_each_time"] = made
    vars(module)["forward"] = _in_turn(made)
    model.register_forward_pre_hook(lambda *_: vars(module).__setitem__("forward", _in_turn(made)))
    return made


def _in_turn(modules: list[nn.Module]) -> Callable[..., Any]:
    """A forward that calls one module after the other."""
    waiting = iter(modules)
    return lambda *args, **kwargs: next(waiting)(*args, **kwargs)
