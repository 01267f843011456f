"""Gradients at the inputs of any model: at its pictures, sounds and embeddings, and where token ids become vectors.

Nothing has to be known of the blocks, so this works for models with several streams and for those whose attention
cannot be read.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from vitrail.capture.checkpointed import keep_saved, keeps_saved
from vitrail.capture.outputs import UNMOVED, Scalar, run_model
from vitrail.capture.recording.answers import StreamAnswer, read_answer
from vitrail.capture.recording.forward import own_precision, run_in
from vitrail.capture.recording.hooks import Capture, naming
from vitrail.capture.recording.pass_options import PLAIN, PassOptions, PassPlan
from vitrail.capture.refusals import (
    REENTRANT,
    asked_again,
    check_differentiable,
    check_parts,
    no_graph,
    why_no_gradient,
)
from vitrail.capture.residuals import SHARE, incomplete, not_complete
from vitrail.capture.shadow import autograd, dtypes_of, hooks
from vitrail.capture.torch_private import saving_hooks
from vitrail.errors import CutGraphError, InputError, MethodError, TargetError
from vitrail.models.anatomy import Anatomy, Body
from vitrail.models.inputs import Inputs
from vitrail.models.taking import generates

Edit = Callable[[str, Tensor], Tensor]
"""What becomes of the input of a name before the gradient ends there."""


@dataclass(frozen=True, eq=False)
class AtInputs:
    """The places where gradients end, by the name of the input, and what the model answered."""

    roots: dict[str, Tensor]
    answer: StreamAnswer

    def gradients(self, scalar: Tensor) -> dict[str, Tensor | None]:
        """The gradient of a scalar at every input; None where none arrives."""
        places = list(self.roots.values())
        if not scalar.requires_grad:
            raise TargetError(UNMOVED)
        if not places:
            raise InputError(
                "the model looks its words up in no nn.Embedding that was asked for the ids as they were given, so "
                "there is no place where the gradient could end: it pads or hashes them itself."
            )
        found = _arriving(scalar, places)
        if all(gradient is None for gradient in found):
            raise TargetError(UNMOVED)
        if not all(bool(gradient.isfinite().all()) for gradient in found if gradient is not None):
            raise CutGraphError(
                "the gradient of the target is not finite at the inputs, while the target is: the model divides zero "
                "by zero on the way, as a softmax does over a row that a mask hides all of."
            )
        return dict(zip(self.roots, found, strict=True))


def _arriving(scalar: Tensor, places: list[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradient of a scalar at every place; an error of the model's own backward pass says what it is."""
    try:
        return torch.autograd.grad(scalar.sum(), places, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" in str(error):
            raise no_graph("a part of the model", REENTRANT) from error
        raise
    except AssertionError as error:  # of an autograd function of the model's own
        raise no_graph("a part of the model", f"its own backward pass says: {error}") from error


class _SeesRegions(TorchFunctionMode):
    """Take note of regions under `torch.utils.checkpoint`, by how their operations save tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.outside, self.met = saving_hooks(), False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:  # noqa: ANN401
        """Look, and run the function."""
        self.met = self.met or saving_hooks() != self.outside
        return func(*args, **(kwargs or {}))


def at_inputs(
    model: nn.Module, inputs: Inputs, edit: Edit = lambda name, x: x, pass_options: PassOptions = PLAIN
) -> AtInputs:
    """Run a shadow once with leaves in the place of its inputs, and again where parts of it would be recomputed.

    Recomputation happens in the backward pass, when the leaves, the rules and the precision of this pass are gone.

    Args:
        pass_options: the precision of the pass, and the context that the model runs in.
    """
    seen = nullcontext() if keeps_saved(model) else _SeesRegions()
    with suppress(CheckpointError):  # recomputed under rules, which is not how it was computed
        found = _run(model, inputs, edit, pass_options, seen)
        if not isinstance(seen, _SeesRegions) or not seen.met:
            return found
    keep_saved(model)
    return _run(model, inputs, edit, pass_options, nullcontext())


def _run(
    model: nn.Module,
    inputs: Inputs,
    edit: Edit,
    pass_options: PassOptions,
    watching: AbstractContextManager[object],
) -> AtInputs:
    check_differentiable(model)
    dtype, within = pass_options.dtype, pass_options.within
    if within is not None:
        check_parts(model)
    picture = inputs.main if inputs.kind == "image" else None  # whatever the model calls it
    # The context that the pass asks for is told where the gradient ends and which module runs; no block is known.
    capture = Capture(PassPlan(Body(Anatomy(), (), pool=None, owner=model, head=None), options=pass_options))
    roots: dict[str, Tensor] = {}
    with (
        autograd(gradients=True),
        nullcontext() if dtype is None else own_precision(inputs, dtype),
        nullcontext() if within is None else naming(model, capture),
        nullcontext() if within is None else within(model, capture),
    ):
        usable = (inputs if dtype is None else inputs.cast(dtype)).usable()

        def root(name: str, x: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                raise no_graph(f"what the model makes of {name}", why_no_gradient())
            roots[name] = edit(name, x.detach().clone()).requires_grad_()
            capture.roots.append(roots[name])
            return roots[name]

        def leaf(name: str, x: Any) -> Any:  # noqa: ANN401
            real = isinstance(x, Tensor) and x.is_floating_point() and "mask" not in name
            return root(PICTURE if name == picture else name, x) if real else x

        args = tuple(leaf(PICTURE if i == 0 else str(i), x) for i, x in enumerate(usable.args))
        some = replace(usable, args=args, kwargs={name: leaf(name, x) for name, x in usable.kwargs.items()})
        texts, table, tables = texts_of(some), _table(model), dict[str, nn.Module]()
        handles = [
            module.register_forward_hook(partial(_words, texts, roots, tables, root, module is table))
            for module in model.modules()
            if isinstance(module, nn.Embedding)
        ]
        with hooks(handles), watching:
            answer = run_model(model, some) if dtype is None else run_in(model, some, dtype)
        return AtInputs(roots, read_answer(answer, some, [], generates=generates(model)))


PICTURE = "pixel_values"


def _table(model: nn.Module) -> object:
    """The model's own table of word embeddings, where it names one."""
    found = getattr(model, "get_input_embeddings", None)
    with suppress(NotImplementedError):  # transformers' way to say that there is none
        return found() if callable(found) else None


def _words(
    texts: dict[str, Tensor],
    roots: dict[str, Tensor],
    tables: dict[str, nn.Module],
    root: Callable[[str, Tensor], Tensor],
    first: bool,  # noqa: FBT001
    module: nn.Module,
    args: tuple,
    out: Tensor,
) -> Tensor | None:
    """Let the gradient end where the token ids of an input become vectors; `first`: in the model's own table.

    Args:
        tables: the table that was asked for the words of each text.
    """
    asked = args[0] if args and isinstance(args[0], Tensor) else None
    for name, ids in texts.items():
        if asked is not None and tables.get(name) is module and len(texts) == 1:
            return _asked_again(roots[name], asked, ids)
        if name in roots or asked is None:
            continue
        if asked.ndim == 2 and asked.shape[1] > ids.shape[1] and torch.equal(asked[:, : ids.shape[1]], ids):
            # Models that attend in windows pad a text to whole ones.
            return torch.cat([root(name, out[:, : ids.shape[1]]), out[:, ids.shape[1] :]], dim=1)
        if asked.shape == ids.shape and (bool((asked == ids).all()) or (first and len(texts) == 1)):
            tables[name] = module
            return root(name, out).clone()
    return None


def _asked_again(words: Tensor, asked: Tensor, ids: Tensor) -> Tensor | None:
    """Return the same vectors for the same words; refuse words of the text in another order."""
    if asked.shape == ids.shape and bool((asked == ids).all()):
        return words.clone()
    if len(asked) != len(ids) or not bool(torch.isin(asked, ids).all()):
        return None
    raise InputError(
        f"which place of the text (ids of shape {tuple(asked.shape)}) brings what to the answer is not told apart: "
        f"{asked_again(asked)}."
    )


def texts_of(inputs: Inputs) -> dict[str, Tensor]:
    """The token ids: by their keyword, or all whole numbers `[b, n]` where none is named so; and the first argument."""
    tensors = {name: x for name, x in inputs.kwargs.items() if isinstance(x, Tensor)}
    whole = {n: x for n, x in tensors.items() if not x.is_floating_point() and x.dtype is not torch.bool}
    texts = {name: x for name, x in whole.items() if name.endswith("input_ids")} or {
        name: x for name, x in whole.items() if x.ndim == 2 and not any(word in name for word in NO_TEXTS)
    }
    if inputs.args and isinstance(inputs.args[0], Tensor) and not inputs.args[0].is_floating_point():
        texts["input_ids"] = inputs.args[0]
    return texts


NO_TEXTS = ("mask", "position", "type", "label", "length", "size", "shape", "grid")
"""Parts of the names of whole numbers that are no words."""


Attributed = dict[str, Tensor]
"""By the name of the input, what each of its entries is worth."""


@dataclass(frozen=True, eq=False)
class InputAttribution:
    """The attribution of a target to every entry of every input."""

    part: Scalar
    found: Attributed
    residual: Tensor | None = None  # what the sum lacks of the change of the target, where completeness is promised
    wrong: Tensor | None = None  # the samples where that is more than a small share of the change and rounding
    lacks: str | None = None  # what to say of them
    steps: int | None = None  # points on the path that were taken
    power: int = 1  # how much closer to zero they lie than evenly spaced ones


def input_x_gradient(
    model: nn.Module, inputs: Inputs, target: object, pass_options: PassOptions = PLAIN
) -> InputAttribution:
    """Every input times the gradient of the target there, by the rules that the pass is run with."""
    run = at_inputs(model, inputs, pass_options=pass_options)
    parts = run.answer.scalars(target)
    found = [run.gradients(part.scalar) for part in parts]
    _check_reached(model, inputs, parts, found, pass_options)
    each = [{name: _or_zero(g, run.roots[name]) * run.roots[name].detach() for name, g in one.items()} for one in found]
    return InputAttribution(parts[0], _added(parts[0], each))


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _check_reached(
    model: nn.Module,
    inputs: Inputs,
    parts: Sequence[Scalar],
    found: Sequence[Mapping[str, Tensor | None]],
    pass_options: PassOptions = PLAIN,
) -> None:
    """Refuse a scalar that an input changes by a way that has no gradient: zeros would say that it does not."""
    for part, gradients in zip(parts, found, strict=True):
        every = torch.arange(len(part.scalar), device=part.scalar.device)
        for missing in [name for name, gradient in gradients.items() if gradient is None]:
            run = at_inputs(
                model, inputs, lambda name, x, cut=missing: x.flip(-1) + 1 if name == cut else x, pass_options
            )
            if not torch.equal(part.read(run.answer.output.wide, every).detach(), part.scalar.detach()):
                raise CutGraphError(
                    f"the answer depends on {missing}, but no gradient arrives there: a part of the model runs under "
                    "torch.no_grad, detaches what it gives, or rounds it to whole numbers. Explain a model that can be "
                    "differentiated from its answer to this input."
                )


def integrated_gradients(
    model: nn.Module, inputs: Inputs, target: object, *, steps: int, power: int = 1
) -> InputAttribution:
    """Every input times the mean gradient on the path from zero to it.

    Args:
        steps: points on the path.
        power: points lie at powers of the middles of equal parts, each with the weight of its part of the path. Where
            the model norms its input, nearly all of the change happens close to zero, which even points miss.
    """
    whole = at_inputs(model, inputs)
    parts = whole.answer.scalars(target)
    _check_reached(model, inputs, parts, [whole.gradients(part.scalar) for part in parts])
    every = torch.arange(len(parts[0].scalar), device=parts[0].scalar.device)
    totals: list[Attributed] = [{name: torch.zeros_like(x) for name, x in whole.roots.items()} for _ in parts]
    for step in range(steps):
        middle = (step + 0.5) / steps
        weight = power * middle ** (power - 1) / steps
        run = at_inputs(model, inputs, lambda name, x, share=middle**power: x * share)
        for part, total in zip(parts, totals, strict=True):
            for name, gradient in run.gradients(part.read(run.answer.output.wide, every)).items():
                total[name] += whole.roots[name].detach() * _or_zero(gradient, whole.roots[name]) * weight
    start = at_inputs(model, inputs, lambda name, x: torch.zeros_like(x)).answer.output.wide
    found = InputAttribution(parts[0], _added(parts[0], totals), steps=steps, power=power)
    ends = [(part.scalar.detach(), part.read(start, every).detach()) for part in parts]
    return _measured(found, totals, ends, dtypes_of(model))


def _measured(
    found: InputAttribution,
    totals: Sequence[Attributed],
    ends: Sequence[tuple[Tensor, Tensor]],
    dtypes: Collection[torch.dtype],
) -> InputAttribution:
    """Add what the sums of scores lack of `F(x) - F(0)`; nothing where inputs have no axis of samples.

    Args:
        totals: the scores of each scalar of the target.
        ends: each scalar at the input and at zero.
    """
    batch = len(ends[0][0])
    if any(x.shape[0] != batch for total in totals for x in total.values()):
        return found
    lacking, wrong, lacks = [], [], None
    for total, (at_input, at_zero) in zip(totals, ends, strict=True):
        added = sum(x.reshape(batch, -1).sum(dim=1) for x in total.values())
        lacking.append(at_input - at_zero - added)
        numbers = (lacking[-1], at_input, at_zero, _largest(total), dtypes)
        wrong.append(incomplete(*numbers))
        lacks = lacks or not_complete(*numbers, steps=found.steps or 0)
    return replace(found, residual=reduce(torch.add, lacking), wrong=torch.stack(wrong).any(dim=0), lacks=lacks)


def _largest(scores: Attributed) -> Tensor:
    """Return the size of the largest score of each sample."""
    return torch.stack([x.flatten(1).abs().amax(dim=1) for x in scores.values()]).amax(dim=0)


CLOSER = 6
"""The power of points that lie closer to zero: a norm with an epsilon of 1e-5 changes over a third of them."""
MOST = 8
"""How many times more points than that are taken at most."""
SHARE_AT_MOST = 0.25
"""What scores may change by, as a share of the largest, when the points become as many as there may be."""


def converged_gradients(model: nn.Module, inputs: Inputs, target: object, *, steps: int) -> InputAttribution:
    """Return integrated gradients that add up to the change of the target, and that other points confirm.

    A sum can be right by chance while its scores are not. Each sample takes the first points that are confirmed,
    whatever other samples of its batch need.

    Raises:
        MethodError: where the most points are not enough.
    """
    found = integrated_gradients(model, inputs, target, steps=steps)
    if found.wrong is None:  # inputs have no axis of samples
        return found
    unsettled, last = torch.ones_like(found.wrong), found
    for more in (1, 2, 4, MOST):
        before, last = last, integrated_gradients(model, inputs, target, steps=steps * more, power=CLOSER)
        unsettled = unsettled & ~_confirmed(before, before, last, SHARE)
        if not bool(unsettled.any()):
            return found
        found = _with_samples(found, last, unsettled)
    unsettled = unsettled & ~_confirmed(last, before, last, SHARE_AT_MOST)  # nothing confirms the most points
    if not bool(unsettled.any()):
        return found
    raise MethodError(
        f"{last.lacks or DISAGREE.format(last.steps, int(unsettled.int().argmax()))} The model jumps on the way, as "
        "where experts are chosen, or rounds its numbers. Name a method: attn_lrp, conservative_lrp and "
        "input_x_gradient need no path; integrated_gradients(steps=...) is given as it is."
    )


DISAGREE = (
    "integrated_gradients did not converge in {} steps: half as many give other scores to the tokens or pixels of "
    "sample {}."
)


def _confirmed(kept: InputAttribution, some: InputAttribution, more: InputAttribution, share: float) -> Tensor:
    """Return the samples whose kept scores add up, and which have about the same scores on two paths."""
    assert kept.wrong is not None
    apart = _largest({name: x - more.found[name] for name, x in some.found.items()})
    return ~kept.wrong & (apart <= share * torch.maximum(_largest(some.found), _largest(more.found)))


def _with_samples(found: InputAttribution, other: InputAttribution, chosen: Tensor) -> InputAttribution:
    """Return the scores with those of some samples from another path."""

    def pick(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(chosen.view(-1, *[1] * (old.ndim - 1)), new, old)

    assert found.residual is not None
    assert other.residual is not None
    scores = {name: pick(x, other.found[name]) for name, x in found.found.items()}
    return replace(other, found=scores, residual=pick(found.residual, other.residual), lacks=None)


def _added(part: Scalar, each: list[Attributed]) -> Attributed:
    """The scores of all scalars of a target, added as the target says."""
    signed = [{name: x.abs() for name, x in one.items()} if part.target.absolute else one for one in each]
    return {name: reduce(torch.add, [one[name] for one in signed]) for name in signed[0]}
