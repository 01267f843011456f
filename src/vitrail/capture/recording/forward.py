"""One forward pass of a shadow with every attention layer captured; a recording of its layers, or its logits alone."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from vitrail.capture.checkpointed import keep_saved
from vitrail.capture.graph_nodes import node_of, reached
from vitrail.capture.graphs import active
from vitrail.capture.outputs import Output, check_answers, read_output, run_model
from vitrail.capture.recording.continuations import ReadRows, keeping
from vitrail.capture.recording.hooks import Capture, capturing, replaced_stream
from vitrail.capture.recording.layer import Recording
from vitrail.capture.recording.layers import check_read
from vitrail.capture.recording.padding import first_call
from vitrail.capture.recording.pass_options import KEEPS, PLAIN, ComputeSettings, PassOptions, PassPlan, Wanted
from vitrail.capture.recording.passes import Pass
from vitrail.capture.recording.recompute import check_same, recomputed, without_caches, without_own_cache
from vitrail.capture.refusals import AT_THE_INPUTS, more_blocks
from vitrail.capture.seams.call import first_tensor, stream_of
from vitrail.capture.shadow import callers_device, dtypes_of, in_precision, memory_of, once, remembered, shadow
from vitrail.capture.structure.blocks import found_body
from vitrail.capture.structure.cache import SAMPLES
from vitrail.capture.structure.journal import Journal
from vitrail.capture.structure.measure import Structure
from vitrail.capture.structure.signature import GraphEnds
from vitrail.capture.structure.variants import journaled, known_updates, measure_all, structure_of, variant_of
from vitrail.capture.torch_private import uncompiled
from vitrail.errors import (
    AnatomyError,
    CutGraphError,
    InputError,
    OptionError,
    SeamError,
    TargetError,
    VitrailError,
)
from vitrail.models.anatomy import Anatomy, Body, known_anatomy, resolve
from vitrail.models.inputs import Inputs, check_fits, read_inputs
from vitrail.models.readouts import last_position
from vitrail.models.taking import check_target, prepared
from vitrail.targets import AnyTarget, as_target

logger = logging.getLogger("vitrail")


@contextmanager
def forward(
    model: nn.Module,
    inputs: Inputs,
    body: Body,
    wanted: Wanted,
    settings: ComputeSettings,
    pass_options: PassOptions = PLAIN,
    *,
    lean: bool = False,
    rows: ReadRows | None = None,
) -> Iterator[Pass]:
    """Run a shadow of the model once, and keep what its attention layers were given and gave.

    Args:
        lean: keep of the residual stream only what is wanted, for those who read nothing but layers.
        rows: the only rows whose logits are read; None for all.
    """
    if pass_options.wide_range and pass_options.dtype is None and torch.float16 in dtypes_of(model):
        pass_options = replace(pass_options, dtype=torch.float32)
    plan = plan_pass(model, inputs, body, wanted, settings, pass_options, lean=lean, rows=rows)
    dtype = pass_options.dtype
    own = nullcontext() if dtype is None else own_precision(inputs, dtype)
    # As `autograd` does. In this order: `inference_mode` puts back the setting of gradients that it finds.
    with torch.inference_mode(mode=False), torch.set_grad_enabled(plan.cut), uncompiled(), own, ExitStack() as stack:
        given = inputs.usable()
        inputs = given if dtype is None else given.cast(dtype)
        capture, inputs, output = _run_until_sound(model, inputs, plan, stack)
        if capture.early:
            check_read(capture)
        if not capture.complete or capture.entered != sorted(capture.entered):
            raise capture.incomplete(model)
        if capture.beyond is not None and _depends(output.wide, capture.beyond):
            raise more_blocks(len(plan.body.blocks))
        if wanted.gradients or pass_options.level is not None:
            capture.check_gradients()
        if plan.cut and not capture.roots:
            raise no_root(capture, inputs)
        assert plan.structure is not None
        structure = _seen_structure(model, given, plan, capture, output, stack)
        run = Pass(inputs, capture, output, settings, structure, partial(first_call, model, given))
        yield run
        run.settle()


def plan_pass(
    model: nn.Module,
    inputs: Inputs,
    body: Body,
    wanted: Wanted,
    settings: ComputeSettings,
    options: PassOptions,
    *,
    lean: bool,
    rows: ReadRows | None,
) -> PassPlan:
    """Return the plan of a pass, decided before it runs; raise an error if the pass cannot be made."""
    check_fits(model, inputs)
    structure = structure_of(model, inputs, body)
    if structure.conditional:  # how many blocks the answer depends on is a matter of the content
        structure = measure_all(model, inputs, body, structure.form)
    unread = None
    if structure.used not in (0, len(body.blocks)):  # the answer does not depend on the blocks after these
        unread = body.blocks[structure.used].module
        body = replace(body, blocks=body.blocks[: structure.used])
        structure = structure_of(model, inputs, body)
    if lean and structure.refusal is not None:  # nothing but layers will be read
        raise SeamError(structure.refusal)
    # Without a gradient, the graph begins after the last block: it tells which tokens the prediction reads.
    states = wanted.states if options.graph else frozenset()
    cut = bool(wanted.gradients | states) or options.level is not None or not body.blocks
    if cut and structure.detaches and inputs.batch > SAMPLES:  # samples that were not measured may be cut
        of_all = partial(measure_all, model, inputs, body, structure.form)
        whole = remembered.get(model, "cut samples", (structure.form.keys[-1], inputs.batch), of_all)
        structure = replace(structure, no_gradient=whole.no_gradient)
    if cut and structure.no_gradient is not None:
        raise CutGraphError(structure.no_gradient)
    # If nothing but layers is read, each block can be run again when its layer is.
    again = lean and cut and (settings.memory == "low" or (settings.memory == "auto" and inputs.ids is not None))
    return PassPlan(body, wanted, settings, options, structure, cut, lean, recomputes=again, rows=rows, unread=unread)


def _seen_structure(
    model: nn.Module, inputs: Inputs, plan: PassPlan, capture: Capture, output: Output, stack: ExitStack
) -> Structure:
    """Return the structure that belongs to what this pass did to tokens, or raise where it cannot be walked."""
    assert plan.structure is not None
    if not capture.checked:
        return plan.structure
    seen = partial(_ends_of_run, model, plan=plan, stack=stack)
    if capture.hidden and capture.journal is not None:
        found = journaled(model, inputs, plan.body, plan.structure, capture.journal, seen)
    else:
        ends = capture.ends(output.wide)
        found = variant_of(model, inputs, plan.body, plan.structure, ends, seen, capture.journal)
    known = plan.structure
    if plan.cut and found.no_gradient is not None:
        raise CutGraphError(found.no_gradient)
    if found is known or (found.origin, found.refusal, found.used) == (known.origin, known.refusal, known.used):
        return known
    if plan.lean and found.refusal is not None:
        raise SeamError(found.refusal)
    if found.used not in (0, len(plan.body.blocks)):
        raise SeamError(
            f"the answer to these inputs depends on {found.used} of the {len(plan.body.blocks)} blocks that run: the "
            f"model stops early where the content says so. {AT_THE_INPUTS}"
        )
    return found


def _ends_of_run(model: nn.Module, inputs: Inputs, *, plan: PassPlan, stack: ExitStack) -> GraphEnds:
    """Run the model as it is, on these inputs, and return where the graph is read."""
    options = PassOptions(dtype=plan.options.dtype)
    inputs = inputs if options.dtype is None else inputs.cast(options.dtype)
    plain = replace(plan, wanted=Wanted(), options=options, settings=ComputeSettings(), cut=True, recomputes=False)
    with torch.enable_grad():
        capture, _, output = _run_captured(model, inputs, plain, stack=stack, noted=False)
    return capture.ends(output.wide)


def _close(journal: Journal, module: nn.Module, args: tuple, out: object) -> None:
    """Close the journal: a hook after the last block."""
    journal.close()


def _note_beyond(capture: Capture, module: nn.Module, args: tuple, out: object) -> None:
    """Keep what a block gives that is taken to be unread: a hook after it."""
    capture.beyond = first_tensor(out)


def _depends(answer: Tensor, x: Tensor) -> bool:
    """Return True if an answer depends on this; a choice between two states depends on the one that is chosen."""
    if not answer.requires_grad or not reached([node_of(answer)], {node_of(x)}):
        return False
    seed = torch.linspace(1, 2, answer.numel(), dtype=answer.dtype, device=answer.device).view_as(answer)
    (found,) = torch.autograd.grad(answer, x, seed, retain_graph=True, allow_unused=True)
    return found is not None and bool((found != 0).any())


def _is_frozen(model: nn.Module) -> bool:
    """Return True if some weights have no gradient: what they make of the input may be in no graph."""
    return any(not p.requires_grad for p in model.parameters())


def _has_storage(x: Tensor) -> bool:
    """Return True if a tensor is torch's own, which has memory of its own."""
    return type(x) in (Tensor, nn.Parameter)


def _is_stored(model: nn.Module, x: Tensor) -> bool:
    """Return True if a tensor lies in a weight of the model."""
    held = once(
        model, "storages", lambda: {p.untyped_storage().data_ptr() for p in model.parameters() if _has_storage(p)}
    )
    return _has_storage(x) and x.untyped_storage().data_ptr() in held


def _run_until_sound(
    model: nn.Module, inputs: Inputs, plan: PassPlan, stack: ExitStack
) -> tuple[Capture, Inputs, Output]:
    """One pass, and another where the first shows that it has to be made in another way.

    Args:
        stack: frees what was captured when it is closed.
    """
    run, found = partial(_run_captured, model, inputs, stack=stack), None
    with suppress(CheckpointError):  # recomputed under rules, which is not how it was computed
        found = run(plan)
    if found is None or (found[0].checkpointed and plan.cut):  # recomputed after hooks and rules are gone
        logger.debug("%s runs again: it has checkpointed regions.", type(model).__name__)
        keep_saved(model)
        stack.close()
        found = run(plan)
    if found[0].attending and not found[0].complete:  # attention is not where the structure says: intercept everywhere
        logger.debug("%s runs again: attention is intercepted in all of its modules.", type(model).__name__)
        stack.close()
        found = run(replace(plan, lean=False))
    capture, given, output = found
    if not output.sound and bool(output.logits.detach().isnan().any()):  # at padding, and then in gradients too
        logger.debug("%s runs again: rows of attention that see nothing get no weight.", type(model).__name__)
        stack.close()
        capture, given, safe = run(replace(plan, lean=False, safe=True))
        output = _same_answer(output, safe)
    if not output.sound:
        check_answers(output.logits)
    return capture, given, output


def _same_answer(own: Output, safe: Output) -> Output:
    """The output of a pass without NaN inside, NaN put back where the model has it; it answers as the model does."""
    broken, known = own.logits.detach().isnan(), own.wide.detach()
    mended = own.logits.ndim == 3 and bool(broken.flatten(1).all(dim=1).any())
    if mended:  # as eager attention of transformers gives in float64 after left padding
        broken &= ~broken.flatten(1).all(dim=1)[:, None, None]
        known = known.where(broken | ~known.isnan(), safe.wide.detach())
    if not torch.allclose(known.nan_to_num(), safe.wide.detach().masked_fill(broken, 0.0).nan_to_num(), atol=1e-4):
        raise InputError(
            "some of the model's logits are NaN, and so are gradients on the way to the others. Check the weights, and "
            "whether a row of the attention mask hides everything: give padded rows one key to see."
        )
    return replace(safe, wide=safe.wide.masked_fill(broken, torch.nan), sound=False, mended=mended)


def _run_captured(
    model: nn.Module, inputs: Inputs, plan: PassPlan, *, stack: ExitStack, noted: bool = True
) -> tuple[Capture, Inputs, Output]:
    """Return the capture of one run, the inputs as the model was given them, and its output.

    Args:
        noted: whether functions are noted where the graph does not show them.
    """
    capture, options, rows = Capture(plan), plan.options, plan.rows
    stack.callback(capture.release)
    capture.ids, capture.batch = inputs.ids, inputs.batch
    if "output_weight" in plan.wanted.states and plan.structure is not None:
        capture.unscaled = known_updates(model, plan.structure.form)
    if plan.recomputes and plan.structure is not None:
        capture.recomputed = recomputed(len(plan.body.blocks), plan.structure.together, plan.settings.memory, inputs)
        capture.again = partial(_run_again, model, capture)
    # Nothing may ask the device more while a CUDA graph is recorded; calls before that have been checked.
    capture.checked = not active.answers
    capture.hidden = not plan.cut or capture.recomputed is not None or options.within is not None
    capture.hidden |= options.last_block or options.per_block or once(model, "frozen", partial(_is_frozen, model))
    fresh = bool(memory_of(model).call.get("measured"))  # a later pass without a graph finds what this one did
    if noted and capture.checked and (capture.hidden or fresh):
        capture.journal = Journal(inputs.ids, None if plan.structure is None else plan.structure.form.length)
        for block in plan.body.blocks[-1:]:
            close = block.module.register_forward_hook(partial(_close, capture.journal))
            stack.callback(close.remove)
    if plan.unread is not None and not plan.cut:  # the graph of a pass that has one shows it in its signature
        stack.callback(plan.unread.register_forward_hook(partial(_note_beyond, capture)).remove)
    capture.is_stored = partial(_is_stored, model)
    if plan.cut and (capture.level != "embedding_output" or not plan.body.blocks):
        inputs = _rooted(inputs, capture)
    with capturing(model, capture), nullcontext() if options.within is None else options.within(model, capture):
        kept = plan.cut and capture.recomputed is None
        given = inputs if kept else without_own_cache(model, inputs)
        with nullcontext(given) if rows is None else keeping(model, given, rows) as given:
            answer = run_model(model, given) if options.dtype is None else run_in(model, given, options.dtype)
    output = read_output(answer, span=plan.body.anatomy.span, broken=True, encodings=plan.body.encodings)
    cut = rows is not None and output.logits.ndim == 3 and output.logits.shape[1] == len(rows)
    return capture, inputs, replace(output, rows=rows if cut else None)


def _run_again(model: nn.Module, capture: Capture, index: int) -> tuple[Tensor, Tensor]:
    """Run one block once more, captured and with a graph: the stream it is given, a leaf, and the stream it gives."""
    again = capture.recomputed
    assert again is not None
    args, kwargs = again.arguments[index]
    leaves: list[Tensor] = []

    def leaf(stream: Tensor) -> Tensor:
        leaves.append(stream.detach().requires_grad_())
        return leaves[0]  # `capturing` hands the block a copy, if it writes into what it is given

    args, kwargs = replaced_stream(args, without_caches(kwargs), leaf)
    again.replay = index
    try:
        with torch.enable_grad(), uncompiled(), callers_device(model), capturing(model, capture, only=index):
            out = first_tensor(capture.body.blocks[index].module(*args, **kwargs))
    finally:
        again.replay = None
    check_same(index, out.detach(), again.stream_after(index, stream_of))
    return leaves[0], out


def own_precision(inputs: Inputs, dtype: torch.dtype) -> AbstractContextManager[object]:
    """A caller's autocast is for the model as it is, not for one in a precision that was asked for."""
    device = inputs.shown.device.type
    if device == "mps" and dtype is torch.float64:
        raise OptionError("Apple's GPUs have no float64: use precision='float32', or move the model to the CPU.")
    return torch.autocast(device, enabled=False)


def run_in(model: nn.Module, inputs: Inputs, dtype: torch.dtype) -> Any:  # noqa: ANN401
    """Return the output of the model, computed by a copy of its weights in this precision."""
    if all(p.dtype is dtype for p in model.parameters()):
        return run_model(model, inputs)
    with in_precision(model, dtype):
        try:
            return run_model(model, inputs)
        except (VitrailError, CheckpointError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
            raise OptionError(
                f"{type(model).__name__} does not run in {str(dtype).removeprefix('torch.')}, which this method asks "
                f"for: {type(error).__name__}: {str(error).splitlines()[0][:200]}. Weights of 8 bits and code that "
                "converts its own numbers stay in the precision they have. Try precision='float32', or a method that "
                "runs the model as it is, such as gae."
            ) from error


def _rooted(inputs: Inputs, capture: Capture) -> Inputs:
    """The inputs with a picture that the gradient can end at, where it should."""
    shown = inputs.shown
    pixels = capture.level == "pixels" and inputs.kind == "image"
    # Without blocks, embeddings that are handed in are the lowest place there is.
    lowest = not capture.body.blocks and (inputs.main is None or inputs.signal)
    embeds = inputs.ids is None and inputs.kind == "text" and capture.level == "inputs_embeds"
    if not shown.is_floating_point() or not (pixels or lowest or embeds):
        return inputs
    return inputs.showing(capture.root(shown.clone()))


def no_root(capture: Capture, inputs: Inputs) -> OptionError:
    """Return the error for a place at which the gradient should end and that the pass did not meet."""
    instead = (
        "Use level='embedding_output'." if capture.body.blocks else "Name the blocks: vitrail.Anatomy(blocks=...)."
    )
    seen = {
        "pixels": f"the inputs are {inputs.kind}, and no picture [b, 3, h, w] of real numbers. {instead}",
        "inputs_embeds": "no table of word embeddings (nn.Embedding) was asked for the tokens of the text: the model "
        f"makes them in another way. {instead}",
        "embedding_output": "none of the blocks ran, or none was called with a tensor."
        if capture.body.blocks
        else f"the model has no nn.Embedding where the gradient could end. {instead}",
    }
    return OptionError(f"the gradient was to end at level={capture.level!r}, but {seen[capture.level]}")


def record(
    model: object,
    inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    target: AnyTarget = None,
    *,
    keep: frozenset[str] | set[str] = KEEPS,
    anatomy: Anatomy | None = None,
) -> Recording:
    """Every attention layer of one pass, with the gradients of one target.

    Args:
        keep: which states and gradients to keep beside queries, keys and values; all by default.
        anatomy: where the parts of the model are, if it is of no known family.
    """
    wanted, read = Wanted.of(frozenset(keep)), read_inputs(prepared(model, inputs).inputs)
    with shadow(model) as own, forward(own, read, find_body(own, anatomy, read), wanted, ComputeSettings()) as run:
        check_target(own, chosen := as_target(target))
        part, *more = run.parts(chosen)
        if more:
            raise OptionError(
                "an answer is two scalars, recorded one at a time: pass a function of the start and end logits "
                "[b, t, 2], such as lambda both: both[:, 5, 0]."
            )
        layers = list(run.layers(part, wanted, again=True))
        return Recording(tuple(reversed(layers)), run.output.logits.detach(), part.scalar.detach())


def find_body(model: nn.Module, given: Anatomy | None, inputs: Inputs) -> Body:
    """The model's parts: by the anatomy given, by the family's, or as found in a pass with these inputs."""
    if given is not None and not isinstance(given, Anatomy):
        raise AnatomyError(f"anatomy is a vitrail.Anatomy, such as Anatomy(blocks='encoder.layers'), not {given!r}.")
    if given is not None:
        return resolve(given, model)
    known = once(model, "family", lambda: known_anatomy(model))
    if known is None:
        return found_body(model, inputs)
    return once(model, known, lambda: resolve(known, model))


@dataclass(frozen=True, eq=False)
class PredictedLogits:
    """The inputs in one form, the logits of each, and for pictures the rows and columns of patches."""

    inputs: Inputs
    logits: Float[Tensor, "b c"]
    grid: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        assert self.inputs.size is not None
        return self.inputs.size

    def showing(self, images: Tensor, **more: Any) -> Tensor | dict[str, Any]:  # noqa: ANN401
        """Return the arguments with which the model is called to look at other pictures, with further keywords."""
        main = self.inputs.main or ("pixel_values" if more else None)
        return images if main is None else {**self.inputs.kwargs, **more, main: images}

    @property
    def best(self) -> list[tuple[int, float]]:
        """The predicted class of each sample and its probability."""
        likely, classes = self.logits.softmax(dim=1).max(dim=1)
        return list(zip(classes.tolist(), likely.tolist(), strict=True))


def predict(model: object, inputs: Any, anatomy: Anatomy | None = None) -> PredictedLogits:  # noqa: ANN401
    """Return the logits of the prediction; for a language model, those of the next token."""
    read = read_inputs(prepared(model, inputs).inputs)
    with shadow(model) as own, forward(own, read, find_body(own, anatomy, read), Wanted(), ComputeSettings()) as run:
        return PredictedLogits(read, _class_logits(run), run.origin.grid)


def _class_logits(run: Pass) -> Float[Tensor, "b c"]:
    logits = run.output.wide.detach()
    if run.output.span:
        raise TargetError("a model that answers questions has no classes to contrast: use vitrail.explain.")
    if logits.ndim == 2:
        return logits
    if not run.causal:
        raise TargetError("this model answers at every token: use vitrail.explain with targets.logit(c, position=p).")
    return logits[torch.arange(len(logits), device=logits.device), last_position(run.valid)]
