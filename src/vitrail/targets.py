"""The explained scalar: a class, a contrast of two classes, a next token, an answer, a continuation.

A target is a small frozen object that carries its classes and can be called on logits `[b, c]`. Classes are
one index for all samples, a tuple with one for each, or None for the class the model predicts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, SupportsIndex, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import TargetError, suggest

Index = SupportsIndex | Sequence[SupportsIndex] | np.ndarray | Tensor
Classes = int | tuple[int, ...] | None
Values = Float[Tensor, " b"]

FORMULAS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "logit": lambda logits, first, second: first,
    "next_token": lambda logits, first, second: first,
    "probability": lambda logits, first, second: _probability(logits, first),
    "next_token_probability": lambda logits, first, second: _probability(logits, first),
    "difference": lambda logits, first, second: first - second,
    "relative_difference": lambda logits, first, second: (first - second) / first,
    "ratio": lambda logits, first, second: first / second,
}


def _probability(logits: Tensor, first: Tensor) -> Tensor:
    """The softmax over classes; a single logit is a yes or no, whose probability is the sigmoid."""
    return first.sigmoid() if logits.shape[1] == 1 else (first - logits.logsumexp(dim=1)).exp()


NEXT_TOKEN = {"next_token", "next_token_probability"}
SINGLE = {"logit", "probability"} | NEXT_TOKEN
SCALARS = {
    "logit": {"logit": "logit", "next_token": "next_token"},
    "probability": {"logit": "probability", "next_token": "next_token_probability"},
}
"""What a method's `scalar` option makes of a plain class target or next token."""
SPAN_SCALARS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "log_probability": lambda logits, ids: _picked(logits, ids) - logits.logsumexp(dim=1),
    # Of the others alone: 1 - p would round to zero where the model is sure.
    "log_odds": lambda logits, ids: _picked(logits, ids) - logits.scatter(1, ids[:, None], -torch.inf).logsumexp(dim=1),
}
"""What is summed over the tokens of a continuation: from logits `[m, v]` and ids `[m]` to `[m]`."""


def _picked(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.gather(1, ids[:, None])[:, 0]


@dataclass(frozen=True)
class Target:
    """A scalar of the output, by name and classes."""

    name: str
    first: Classes = None
    second: Classes = None
    position: int | None = None
    absolute: bool = False
    start: Classes = None
    stop: Classes = None
    scalar: str = "log_probability"

    def __call__(self, logits: Float[Tensor, "b c"]) -> Values:
        """The scalar of each sample."""
        return self.of(logits).value(logits)

    def value(self, logits: Float[Tensor, "b c"]) -> Values:
        """The scalar of each sample, where every sample has its class already (see `of`)."""
        if self.name not in FORMULAS:
            raise TargetError(f"the {self} cannot be computed from one row of logits. Pass it to vitrail.explain.")
        classes = [torch.as_tensor(c, device=logits.device) for c in (self.first, self.second) if c is not None]
        picked = [logits.gather(1, chosen[:, None])[:, 0] for chosen in classes]
        return FORMULAS[self.name](logits, picked[0], picked[-1])

    def of(self, logits: Float[Tensor, "b c"]) -> "Target":
        """The same target with one class for each sample, predicted classes filled in."""
        (batch, count), found = logits.shape, []
        for classes in (self.first,) if self.name in SINGLE else (self.first, self.second):
            each = (classes,) * batch if isinstance(classes, int) else classes
            each = tuple(logits.argmax(dim=1).tolist()) if each is None else each
            if len(each) != batch:
                raise TargetError(
                    f"{len(each)} targets were given for a batch of {batch}. Give one int, or one for each."
                )
            for wrong in (c for c in each if not -count <= c < count):
                check_class(wrong, count)
            found.append(tuple(c % count for c in each))
        first, second = (*found, None)[:2]
        if second is not None:
            _check_apart(self.name, first, second)
        return replace(self, first=first, second=second)

    def take(self, rows: Tensor) -> "Target":
        """The target of some samples of the batch, in the order given."""

        def each(classes: Classes) -> Classes:
            return tuple(classes[row] for row in rows.tolist()) if isinstance(classes, tuple) else classes

        return replace(self, **{name: each(getattr(self, name)) for name in ("first", "second", "start", "stop")})

    def __str__(self) -> str:
        """For example `logit of 243`, `difference of 3 and 5`, or `log-probability of tokens 5 to 8`."""
        if self.name == "continuation":
            return f"{self.scalar.replace('_', '-')} of tokens {_show(self.start)} to {_show(self.stop, before=1)}"
        classes = " and ".join(_show(c) for c in (self.first, self.second) if c is not None)
        where = "" if self.position is None else f" at position {self.position}"
        return f"{self.name.replace('_', ' ')}{f' of {classes}' if classes else ''}{where}"


def logit(c: Index | None = None, *, position: int | None = None) -> Target:
    """The logit of a class; `position` where the model answers at every token."""
    return Target("logit", _classes(c), position=_place(position))


def probability(c: Index | None = None, *, position: int | None = None) -> Target:
    """The softmax probability of a class."""
    return Target("probability", _classes(c), position=_place(position))


def difference(a: Index, b: Index) -> Target:
    """`y_a - y_b`: evidence for one class against another."""
    return _contrast("difference", a, b)


def relative_difference(a: Index, b: Index) -> Target:
    """`(y_a - y_b) / y_a` (Cui et al., Eq. 8). Where logits may change sign, prefer `difference`."""
    return _contrast("relative_difference", a, b)


def ratio(a: Index, b: Index) -> Target:
    """`y_a / y_b`."""
    return _contrast("ratio", a, b)


def _contrast(name: str, a: Index, b: Index) -> Target:
    """A target of two classes, which must not be the same."""
    first, second = _classes(a), _classes(b)
    _check_apart(name, first, second)
    return Target(name, first, second)


def check_class(index: int, count: int) -> int:
    """Return the class if a model of so many classes has it."""
    if not 0 <= index < count:
        raise TargetError(f"target {index} is out of range: the model has {count} classes, 0 to {count - 1}.")
    return index


def _check_apart(name: str, first: Classes, second: Classes) -> None:
    """Raise if a sample would be asked for the contrast of a class with itself, which is the same for every input."""
    if first is None or second is None:
        return
    length = max(len(c) if isinstance(c, tuple) else 1 for c in (first, second))
    pairs = zip(*(c if isinstance(c, tuple) else (c,) * length for c in (first, second)), strict=False)
    same = next((one for one, other in pairs if one == other), None)
    if same is not None:
        raise TargetError(
            f"the {name.replace('_', ' ')} of class {same} and itself explains nothing: name two classes."
        )


def next_token(token: Index | None = None) -> Target:
    """The logit of the token that follows the last real one."""
    return Target("next_token", _classes(token))


POOLINGS = ("mean", "first", "last")


@dataclass(frozen=True, eq=False)
class Similarity:
    """The cosine of the angle between what a model gives for a sample and another encoding.

    Args:
        other: the encoding of what is compared, `[1, d]` for all samples or `[b, d]` with one for each.
        pooling: which tokens make one vector where the model gives one for each: their mean, the first or the last.
    """

    other: Float[Tensor, "b d"]
    pooling: str = "mean"

    def __call__(self, encodings: Float[Tensor, "b d"]) -> Values:
        """The similarity of each sample."""
        other = self.other.to(encodings)
        if other.shape[1:] != encodings.shape[1:] or other.shape[0] not in (1, len(encodings)):
            raise TargetError(
                f"targets.similarity was given encodings of shape {tuple(other.shape)}, but the model gives "
                f"{tuple(encodings.shape)}: one vector of {encodings.shape[1]} numbers, or one for each sample, is "
                "needed. Encode what is compared with the same model."
            )
        return torch.nn.functional.cosine_similarity(encodings, other, dim=1)

    def take(self, rows: Tensor) -> "Similarity":
        """The same for some samples of the batch, in the order given."""
        return self if len(self.other) == 1 else replace(self, other=self.other[rows.to(self.other.device)])

    def __str__(self) -> str:
        """For messages and labels."""
        return "similarity"


def similarity(other: Any, *, pooling: str = "mean") -> Similarity:  # noqa: ANN401
    """The cosine similarity of the encoding of each sample and another encoding, for models that give encodings.

    Args:
        other: the encoding of what is compared: `[d]`, or `[b, d]` with one for each sample, as a tensor or an array.
        pooling: `mean`, `first` or `last` of the tokens, where the model gives one vector for each.
    """
    if pooling not in POOLINGS:
        raise TargetError(f"pooling={pooling!r} is not known. Choose one of {', '.join(POOLINGS)}.")
    try:
        found = torch.as_tensor(other).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(
            f"targets.similarity takes an encoding [d] or [b, d], but {type(other).__name__} was given. Encode what is "
            "compared first: model.encode(text) of sentence-transformers, or the embedding that the model returns."
        ) from error
    if found.ndim not in (1, 2) or not found.is_floating_point() or not found.numel():
        raise TargetError(
            f"targets.similarity takes real numbers [d] or [b, d], but {tuple(found.shape)} {found.dtype} was given."
        )
    if not bool((found.isfinite().all(dim=-1) & (found != 0).any(dim=-1)).all()):
        raise TargetError(
            "targets.similarity was given an encoding that is zero, NaN or infinite: it has no direction."
        )
    return Similarity(found[None] if found.ndim == 1 else found, pooling)


def answer_span(*, absolute: bool = False) -> Target:
    """The start logit and the end logit, each at its argmax, explained separately and added.

    Args:
        absolute: add absolute values, as AttCAT does for SQuAD v2.
    """
    return Target("answer_span", absolute=absolute)


def continuation(start: Any, stop: Any = None, *, scalar: str = "log_probability") -> Target:  # noqa: ANN401
    """The sum of `log p(x_t | x_<t)` over columns `start <= t < stop` of a causal or encoder-decoder language model.

    Args:
        start: a column of `input_ids` as given, padding included (for an encoder-decoder of `decoder_input_ids`), the
            same for all samples or one for each. A negative one counts from just after the sample's last real token.
        stop: the column after the last, counted in the same way; None is just after the last real token.
        scalar: `log_odds` sums `log(p / (1 - p))` instead. The gradient of a log-probability vanishes where the model
            is sure of a token; that of the log-odds does not.
    """
    if scalar not in SPAN_SCALARS:
        raise TargetError(f"scalar={scalar!r} is not a choice. {suggest(scalar, SPAN_SCALARS)}")
    if start is None:
        raise TargetError("a continuation needs a start: the column of its first token.")
    kind = "is a whole number or one for each sample, but"
    first = _classes(start, f"start {kind} {start!r} was given.")
    return Target("continuation", start=first, stop=_classes(stop, f"stop {kind} {stop!r} was given."), scalar=scalar)


def only(classes: Classes) -> int:
    """The class of a batch of one."""
    index = classes[0] if isinstance(classes, tuple) else classes
    assert index is not None
    return index


def _classes(c: Any, wrong: str | None = None) -> Classes:  # noqa: ANN401
    """Whole numbers in one form; `wrong` is what to say where they are none."""
    if c is None:
        return None
    try:
        given = c.tolist() if hasattr(c, "tolist") else c  # tensors, and arrays and numbers of NumPy
        return tuple(_whole(x) for x in given) if isinstance(given, Sequence) else _whole(given)
    except (TypeError, RuntimeError) as error:  # a sparse, nested or meta tensor has no list
        raise TargetError(
            wrong
            or f"a class index is a whole number, or one for each sample, but {c!r} was given. Names are for models "
            "that name their classes."
        ) from error


def _whole(value: Any) -> int:  # noqa: ANN401
    """A whole number. Python counts True and False among them, but a mask of classes is no class."""
    value = value.item() if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.ndim == 0) else value
    if isinstance(value, bool):
        raise TypeError("a truth value is no index")
    return index(value)


def _place(position: Any) -> int | None:  # noqa: ANN401
    """The position of a token, checked."""
    try:
        return None if position is None else _whole(position)
    except TypeError as error:
        raise TargetError(f"position is the whole number of a token, but {position!r} was given.") from error


def _show(classes: Classes, *, before: int = 0) -> str:
    """The classes, or the columns so many before; one where they are the same for all samples."""
    if classes is None:
        return "the end"
    each = [str(x - before) for x in (classes if isinstance(classes, tuple) else (classes,))]
    return each[0] if len(set(each)) == 1 else "/".join(each)


AnyTarget = Index | str | Sequence[str] | Target | Callable[[Tensor], Tensor] | None
"""Whatever `explain` takes as a target; a text names a class, a token or a word of an answer."""


def as_target(target: object) -> Target | Callable[[Tensor], Tensor]:
    """The target object for None, a class index, or one index for each sample."""
    if isinstance(target, Target):
        return target
    if callable(target) and not isinstance(target, Tensor):
        return cast(Callable[[Tensor], Tensor], target)
    return Target("logit", target if target is None or type(target) is int else _classes(target))


def with_scalar(
    target: Target | Callable[[Tensor], Tensor], scalar: str, *, explicit: bool
) -> Target | Callable[[Tensor], Tensor]:
    """The target with a method's own scalar in place of the plain logit.

    Args:
        explicit: whether the user asked for the scalar. A method's default is ignored for a target of another kind.
    """
    if isinstance(target, Target) and target.name in SCALARS[scalar]:
        return replace(target, name=SCALARS[scalar][target.name])
    if explicit:
        raise TargetError(
            f"the option scalar={scalar!r} applies to a plain class or next token, but the target is "
            f"{target if isinstance(target, Target) else 'a function'}. Leave one of the two out."
        )
    return target
