"""The output of a model, and the scalars that a target picks out of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.recording.layer import widen
from vitrail.capture.shadow import pass_context, passes
from vitrail.errors import InputError, TargetError, VitrailError
from vitrail.models.anatomy import POOLED, from_library
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import READOUTS, last_position, position
from vitrail.targets import NEXT_TOKEN, Similarity, Target, answer_span


@dataclass(frozen=True)
class Output:
    """Logits `[b, c]`, logits at every position `[b, t, c]`, or start and end logits `[b, t, 2]`.

    `wide` are the same logits in at least single precision; targets are functions of these. `sound` says that all of
    them are finite, and `mended` that the model's own are NaN because padding attends to nothing. `rows` are the
    positions of these logits where they are not those of all tokens. `dense` is the name and the shape, samples aside,
    of an answer that is no logits of classes (a depth, masks, a forecast); its numbers stand in one row, `[b, n]`.
    """

    logits: Tensor
    wide: Tensor
    span: bool = False
    sound: bool = True
    mended: bool = False
    encodes: bool = False  # whether these are no logits, but encodings [b, d] or [b, t, d] of a model without a head
    rows: Tensor | None = None
    dense: tuple[str, tuple[int, ...]] | None = None
    beside: tuple[str, ...] = ()  # where these are encodings: the names of predictions that were returned beside them


@dataclass(frozen=True)
class Scalar:
    """One scalar to explain, and the position its explanation is read from where the target names one.

    `read` finds the same scalar in the logits of another pass, whose samples are some rows of this one's. `plain` says
    that it is one of the model's own answers, and not a function of the user's that may read anything. `rows` are
    weights over the positions a continuation is predicted at.
    """

    scalar: Tensor
    target: Target
    read: Callable[[Tensor, Tensor], Tensor]
    position: Tensor | None = None
    plain: bool = True
    rows: Tensor | None = None
    needed: bool = True  # whether a gradient of zero is an error, and not one step of many


def run_model(model: nn.Module, inputs: Inputs) -> Any:  # noqa: ANN401
    """Return the output of the model; an error of its own code says so in a note."""
    inputs = inputs.usable()
    kwargs = inputs.kwargs
    # Names tell logits from encodings, so a Hugging Face model that would return a tuple is asked for them.
    named = kwargs.get("return_dict", getattr(vars(model).get("config"), "return_dict", None))
    if named is False and from_library(model, "transformers"):
        kwargs = {**kwargs, "return_dict": True}
    # Copies of leaves, because models may write into what they are given.
    leaves = {
        id(x) for x in (*inputs.args, *kwargs.values()) if isinstance(x, Tensor) and x.requires_grad and x.is_leaf
    }
    args = tuple(x.clone() if id(x) in leaves else x for x in inputs.args)
    kwargs = {name: x.clone() if id(x) in leaves else x for name, x in kwargs.items()}
    passes.running += 1
    try:
        with pass_context(model, args, kwargs):
            return model(*args, **kwargs)
    except VitrailError:
        raise
    except Exception as error:
        error.add_note(f"Raised by {type(model).__name__} itself, which was run on {_described(inputs)}.")
        raise
    finally:
        passes.running -= 1


def _described(inputs: Inputs) -> str:
    """The tensors a model was given, by name, shape and type, for a message."""
    given = {**{f"argument {i}": x for i, x in enumerate(inputs.args)}, **inputs.kwargs}
    words = {name: f"{tuple(x.shape)} {x.dtype}" for name, x in given.items() if isinstance(x, Tensor)}
    return ", ".join(f"{name} {said}" for name, said in words.items()) or "no tensor"


NO_ANSWER = (
    "an explanation needs logits [b], [b, c] or [b, t, c]: a tensor, an output with .logits, or one with .start_logits "
    "and .end_logits. Does the model have a classification head? Encodings of a model without one are explained by "
    "what they are compared with: targets.similarity(other)."
)


def read_output(output: object, *, span: bool = False, broken: bool = False, encodings: tuple[str, ...] = ()) -> Output:
    """The logits in whatever the model returned.

    Args:
        span: whether a tuple begins with start and end logits.
        broken: take samples whose logits are NaN everywhere too, for a caller that looks at them itself.
        encodings: names of encodings to take where there are no logits; `parts` checks that the target is for them.
    """
    start, end = getattr(output, "start_logits", None), getattr(output, "end_logits", None)
    if span and isinstance(output, tuple):
        start, end = output[:2]
    if isinstance(start, Tensor) and isinstance(end, Tensor):
        return _finite(torch.stack([start, end], dim=2), span=True, broken=broken)
    logits = output if isinstance(output, Tensor) else named(output, LOGITS)
    if logits is None and isinstance(output, (tuple, list)):
        logits = only_answer(output)
    if isinstance(logits, Tensor) and logits.ndim == 1:  # one number for each sample, as regressions give
        logits = logits[:, None]
    encoded = named(output, encodings) if logits is None else None
    logits = encoded if isinstance(encoded, Tensor) else logits
    if isinstance(logits, Tensor) and logits.ndim in (2, 3):
        read = _finite(logits, span=False, broken=broken)
        return replace(read, encodes=True, beside=_predictions(output)) if logits is encoded else read
    name, dense = ("logits", logits) if isinstance(logits, Tensor) else _dense(output)
    if dense is None or dense.ndim < 2:
        raise InputError(f"the model returned a {type(output).__name__}, but {NO_ANSWER}")
    flat = _finite(dense.flatten(1), span=False, broken=broken)
    return flat if name in ONE_ROW and dense.ndim == 2 else replace(flat, dense=(name, tuple(dense.shape[1:])))


def only_answer(output: Sequence[object]) -> object:
    """Return the one tensor of a tuple that may be an answer; which of several is one cannot be told by their shapes.

    Raises:
        InputError: where there are several.
    """
    found = [x for x in output if isinstance(x, Tensor) and x.is_floating_point() and x.ndim in (1, 2, 3)]
    if len({id(x) for x in found}) > 1:
        places = [(i, x) for i, x in enumerate(output) if isinstance(x, Tensor) and any(x is one for one in found)]
        shapes = ", ".join(f"{i}: {tuple(x.shape)}" for i, x in places)
        raise InputError(
            f"the model returned a {type(output).__name__} of several tensors that may be the answer ({shapes}), and "
            f"shapes do not tell which are the logits. {CHOOSE}"
        )
    first = found[0] if found else next(iter(output), None)
    for x in output:
        if x is first:
            break
        if isinstance(x, (tuple, list, dict)) and len(x) > 0:
            raise InputError(
                f"the model returned a {type(output).__name__} that begins with a {type(x).__name__}, so which of its "
                f"tensors are the logits is not known. {CHOOSE}"
            )
    return first


CHOOSE = (
    "Explain a module that returns the one you mean, such as one whose forward is `return self.model(x)[1]`, or a "
    "mapping that names it 'logits'."
)
LOGITS = ("logits", "logits_per_image", "itm_score", "question_answering_score")
"""The names that outputs give to logits: of classes, of the texts a picture was compared with, of answers."""
ONE_ROW = ("prediction_logits", "regression_outputs", "prediction_outputs")
"""The names that models of series give to their answers, which are as logits where there is one row of them."""
BESIDE = ("loss", "hidden_states", "attentions", "past_key_values", *POOLED)
"""What outputs hold beside their answer, by the end of its name."""


PREDICTED = ("preds", "predictions", "prediction", "logits", "scores", "outputs")
"""What outputs call their predictions, by the end of the name."""


def _dense(output: object) -> tuple[str, Tensor | None]:
    """The name and the tensor of the first answer of an output that has no logits; None if it has encodings alone."""
    fields = output.items() if isinstance(output, Mapping) else ()
    answers = (
        (name, x)
        for name, x in fields
        if isinstance(x, Tensor) and x.is_floating_point() and not str(name).endswith(BESIDE)
    )
    return next(answers, ("", None))


def _predictions(output: object) -> tuple[str, ...]:
    """Return the names of what an output predicts."""
    fields = output.items() if isinstance(output, Mapping) else ()
    return tuple(str(name) for name, x in fields if isinstance(x, Tensor) and str(name).endswith(PREDICTED))


def named(output: object, names: tuple[str, ...]) -> object | None:
    """The first of these that an output has."""
    for name in names:
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if found is not None:
            return found
    return None


def _finite(logits: Tensor, *, span: bool, broken: bool) -> Output:
    """The output, if it answers at all; what is read of it is checked when a target reads it.

    Padded positions may hold anything, and minus infinity stands for a class that the model excludes.
    """
    if logits.is_meta:
        raise InputError("the model is on the meta device, so its logits have no values. Load its weights first.")
    if not logits.is_floating_point():
        raise InputError(f"the model's logits are {logits.dtype}, but only real numbers can be explained.")
    if bool(torch.isfinite(logits.detach()).all()):
        return Output(logits, widen(logits), span)
    if not broken:
        check_answers(logits)
    return Output(logits, widen(logits), span, sound=False)


def check_answers(logits: Tensor) -> None:
    """Raise if the logits of a sample are NaN or infinite, at every position where there are several."""
    wrong = (logits.isnan() | (logits == torch.inf)).any(dim=-1)
    wrong = wrong.all(dim=1) if logits.ndim == 3 else wrong
    if bool(wrong.any()):
        raise InputError(
            f"the model's logits contain NaN or infinity in samples {wrong.nonzero()[:, 0].tolist()}, so nothing can "
            "be explained. Check the weights and their precision, and whether a row of the attention mask hides "
            "everything."
        )


def _checked(part: Scalar, here: Tensor) -> Scalar:
    """The part of an output that is not sound, if the logits it reads and its scalar are finite.

    Args:
        here: the logits of each sample that the target reads.
    """
    check_answers(here)
    excluded = ~part.scalar.detach().isfinite()
    if bool(excluded.any()):
        raise TargetError(
            f"the {part.target} is {part.scalar.detach()[excluded][0].item()} in samples "
            f"{excluded.nonzero()[:, 0].tolist()}: the model excludes that class or token, as it does by a mask over "
            "its logits, so there is nothing to explain. Choose a target whose logit is finite."
        )
    return part


def parts(
    output: Output, target: Target | Callable[[Tensor], Tensor], valid: Tensor, *, causal: bool
) -> tuple[Scalar, ...]:
    """The scalars that the target asks for: one, or two for the two ends of an answer."""
    logits = output.wide
    if isinstance(target, Similarity):
        return (_similar(target, output, valid),)
    if not isinstance(target, Target):
        return (_custom(target, output),)
    if output.dense is not None:
        name, shape = output.dense
        places = ", ".join("0" for _ in shape)
        raise TargetError(
            f"the model returned {name} of shape {(len(logits), *shape)}, in which {target} is no one number. Name the "
            f"scalar by a function that gives one value per sample: target=lambda {name}: {name}[:, {places}]."
        )
    if output.encodes:
        raise InputError(f"the model returned encodings of shape {tuple(logits.shape)}, but {NO_ANSWER}")
    # A method's own scalar may have turned the plain logit into a probability; an answer is explained by its logits.
    plain = target.name in ("logit", "probability") and target.first is None and target.position is None
    if target.name == "answer_span" or (output.span and plain):
        return _span(output, logits, target if target.name == "answer_span" else answer_span(), valid)
    if output.span:
        raise TargetError(f"a question-answering model is explained by targets.answer_span(), not by {target}.")
    position = _position(logits, target, valid, causal=causal)
    here = logits if position is None else _at(logits, position)
    chosen = target.of(here.detach())

    def read(logits: Tensor, rows: Tensor) -> Tensor:
        return chosen.take(rows)(logits if position is None else _at(logits, position[rows]))

    part = Scalar(chosen.value(here), chosen, read, position)
    return (part if output.sound else _checked(part, here),)


def _at(logits: Tensor, position: Tensor) -> Tensor:
    """The logits at one position of each sample, where the model answers at every token."""
    return logits[torch.arange(logits.shape[0], device=logits.device), position]


def _position(logits: Tensor, target: Target, valid: Tensor, *, causal: bool) -> Tensor | None:
    if logits.ndim == 2:
        if target.position is not None:
            raise TargetError("this model gives one answer for the whole input; its targets have no position.")
        if target.name in NEXT_TOKEN:
            raise TargetError(
                f"this model gives one answer with {logits.shape[1]} classes for the whole input and predicts no next "
                "token. Name a class: targets.logit(c)."
            )
        return None
    if target.position is not None:
        position = torch.full((logits.shape[0],), target.position, device=logits.device)
        if not -logits.shape[1] <= target.position < logits.shape[1]:
            raise TargetError(f"position {target.position} is outside the {logits.shape[1]} tokens of the input.")
        return position % logits.shape[1]
    if causal and logits.shape[1] != valid.shape[1]:
        raise TargetError(
            f"the model answers at {logits.shape[1]} positions of {valid.shape[1]} tokens, so which token an answer "
            "follows is not known. Leave logits_to_keep out."
        )
    if causal:
        return last_position(valid)
    raise TargetError("this model answers at every token: name one with targets.logit(c, position=p).")


def _span(output: Output, logits: Tensor, target: Target, valid: Tensor) -> tuple[Scalar, ...]:
    if not output.span:
        raise TargetError("targets.answer_span() needs a model with start and end logits.")
    ends = []
    for which in range(2):
        scores = logits[:, :, which].masked_fill(~valid, -torch.inf)
        position = scores.detach().argmax(dim=1)

        def read(logits: Tensor, rows: Tensor, which: int = which, position: Tensor = position) -> Tensor:
            return _at(logits, position[rows])[:, which]

        part = Scalar(scores.gather(1, position[:, None])[:, 0], target, read, position)
        ends.append(part if output.sound else _checked(part, scores.masked_fill(~valid, 0.0)))
    return tuple(ends)


def _similar(target: Similarity, output: Output, valid: Tensor) -> Scalar:
    """Return the similarity of each sample's encoding and the other one."""
    if output.span:
        raise TargetError("targets.similarity compares encodings, but this model gives start and end logits.")
    if output.wide.ndim == 3 and output.wide.shape[:2] != valid.shape:
        raise TargetError(
            f"the model gives encodings of {tuple(output.wide.shape[:2])} tokens where its blocks work on "
            f"{tuple(valid.shape)}, so which of them are padding is not known."
        )

    def read(encodings: Tensor, rows: Tensor) -> Tensor:
        return target.take(rows)(_pooled(encodings, target.pooling, valid[rows]))

    every = torch.arange(len(output.wide), device=output.wide.device)
    return Scalar(read(output.wide, every), Target("similarity"), read, plain=False)


def _first_real(valid: Tensor, content: Tensor) -> Tensor:
    return position(valid, valid.to(torch.int64).argmax(dim=1))


def _pooled(encodings: Tensor, pooling: str, valid: Tensor) -> Tensor:
    """One vector for each sample: the model's own, or made of those of its tokens."""
    if encodings.ndim == 2:
        return encodings
    if encodings.shape[:2] != valid.shape:
        raise TargetError(
            f"this method runs the model on {encodings.shape[1]} of {valid.shape[1]} tokens, so which of its encodings "
            "are to be pooled is not known. Explain a model that pools them itself, such as a SentenceTransformer, or "
            "take a method that runs the whole input."
        )
    weights = {"mean": READOUTS["mean_all"], "first": _first_real, "last": READOUTS["last"]}[pooling](valid, valid).to(
        encodings
    )
    real = encodings.masked_fill(~valid[..., None], 0.0) if pooling == "mean" else encodings
    return torch.einsum("bt,btd->bd", weights, real)


def _custom(function: Callable[[Tensor], Tensor], output: Output) -> Scalar:
    if output.encodes and output.beside:
        raise TargetError(
            f"the model returned last_hidden_state beside {', '.join(output.beside)}, and which of them the target "
            f"function reads is not known. {CHOOSE}"
        )
    flat = output.wide
    shape = flat.shape[1:] if output.dense is None else output.dense[1]
    logits = flat.unflatten(1, shape) if output.dense is not None else flat
    scalar = _called(function, logits)
    if not isinstance(scalar, Tensor) or scalar.shape != logits.shape[:1]:
        got = f"shape {tuple(scalar.shape)}" if isinstance(scalar, Tensor) else type(scalar).__name__
        raise TargetError(
            f"a target function takes logits {tuple(logits.shape)} and gives one value per sample, "
            f"shape ({logits.shape[0]},); this one gave {got}."
        )
    if not scalar.is_floating_point():
        raise TargetError(
            f"the target function gave {scalar.dtype}, but only real numbers can be explained. Return the real or the "
            "imaginary part, the absolute value, or .float() of what is no real number."
        )
    if torch.is_grad_enabled() and not scalar.requires_grad:  # some methods need no gradient
        raise TargetError("the target function's result does not depend on the logits, so it has no gradient.")
    if scalar.requires_grad:
        _check_samples(scalar, logits)
    if not output.sound and not bool(scalar.detach().isfinite().all()):
        raise TargetError(
            f"the target function gave {scalar.detach().tolist()}, but only finite values can be explained. Does it "
            "read a class that the model excludes, or a padded position?"
        )

    def read(flat: Tensor, rows: Tensor) -> Tensor:
        return _called_on_rows(function, flat if output.dense is None else flat.unflatten(1, shape), rows, len(logits))

    name = getattr(function, "__name__", type(function).__name__)
    return Scalar(scalar, Target(name), read, plain=logits.ndim == 2)


def _called_on_rows(function: Callable[[Tensor], Tensor], logits: Tensor, rows: Tensor, batch: int) -> Tensor:
    """Return the value of each of these rows of the batch; the function may hold something for each sample.

    The whole batch is handed over as it is. Other rows are handed over one by one, each as a batch of its own copies.
    """
    if len(rows) == batch and rows.tolist() == list(range(batch)):
        return _called(function, logits)
    each = zip(logits.split(1), rows.tolist(), strict=True)
    return torch.stack([_called(function, one.expand(batch, *one.shape[1:]))[row] for one, row in each])


def _called(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Return the value of a target function; an error of its own is named as such."""
    try:
        return function(logits)
    except (VitrailError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a user's code raises
        name = getattr(function, "__name__", type(function).__name__)
        raise TargetError(
            f"the target function {name} raised {type(error).__name__}: {' '.join(str(error).split())}. It was called "
            f"with logits of shape {tuple(logits.shape)}."
        ) from error


def _check_samples(scalar: Tensor, logits: Tensor) -> None:
    """Refuse a target function whose value for one sample depends on the logits of another.

    The values are multiplied by powers of two, which is exact: the gradient at each sample must be multiplied alike.
    """
    batch = len(scalar)
    codes = torch.tensor([2.0 ** (i % 16) for i in range(batch)], dtype=scalar.dtype, device=scalar.device)
    (plain,) = torch.autograd.grad(scalar.sum(), logits, retain_graph=True, allow_unused=True)
    (coded,) = torch.autograd.grad((scalar * codes).sum(), logits, retain_graph=True, allow_unused=True)
    if plain is None or coded is None:
        return
    expected = plain * codes.to(plain.dtype).view(-1, *[1] * (plain.ndim - 1))
    wrong = ~torch.isclose(coded, expected, rtol=1e-3, atol=0.0, equal_nan=True).flatten(1).all(dim=1)
    if bool(wrong.any()):
        raise TargetError(
            f"the target function mixes samples: the values of other samples depend on the logits of samples "
            f"{wrong.nonzero()[:, 0].tolist()}. It must give one value for each sample, from that sample's logits "
            "alone; explain the samples one by one otherwise."
        )


UNMOVED = (
    "the target does not depend on what enters the attention layers, so there is no gradient to follow: weights on the "
    "way are zero, as those of a head before its training; or the model cuts the graph (detach, no_grad, checkpoint "
    "with use_reentrant=True, 8-bit kernels without a gradient); or the target reads what the layers do not reach."
)


def gradients_at(
    part: Scalar, places: Sequence[Tensor], logits: Tensor, *, again: bool, each_sample: bool
) -> tuple[tuple[Tensor | None, ...], Tensor | None]:
    """Return the gradient of a scalar at every place, None where none arrives, and what they were divided by.

    In float16 the gradient of a probability would underflow: there the backward pass starts at size one.

    Args:
        again: keep the graph for another scalar.
        each_sample: divide by the size of each sample's own gradient, and not by the largest of all.
    """
    if not part.scalar.requires_grad:
        raise TargetError(UNMOVED)
    seed, outputs, scale = torch.ones_like(part.scalar), part.scalar, None
    if any(x.dtype is torch.float16 for x in places):
        seed, outputs, scale = _seed_of_size_one(part, logits, each_sample=each_sample)
    found = torch.autograd.grad(outputs, places, seed, retain_graph=again, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise TargetError(UNMOVED)
    return found, scale


def size_of_gradient(part: Scalar, logits: Tensor) -> float:
    """Return the largest entry of a scalar's gradient at the logits; one where none arrives there."""
    (gradient,) = torch.autograd.grad(part.scalar.sum(), logits, retain_graph=True, allow_unused=True)
    return 1.0 if gradient is None else max(float(gradient.abs().amax()), torch.finfo(torch.float32).tiny)


def _seed_of_size_one(part: Scalar, logits: Tensor, *, each_sample: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a cotangent of size one, where it belongs, and what it was divided by in each sample."""
    (gradient,) = torch.autograd.grad(part.scalar.sum(), logits, retain_graph=True, allow_unused=True)
    if gradient is None:  # a scalar of something else than the logits
        return torch.ones_like(part.scalar), part.scalar, None
    scale = gradient.flatten(1).abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    if not each_sample:
        scale = scale.amax().expand_as(scale)
    return gradient / scale.view(-1, *[1] * (gradient.ndim - 1)), logits, scale
