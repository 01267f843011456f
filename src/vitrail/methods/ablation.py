"""Run a language model again on a text from which tokens are removed.

Removed tokens are cut out, padding too, and texts of one length run together. Nothing is padded: many classifiers find
the row that they read by the ids alone, and a mask does not tell them where the text ends. Only the answer of a causal
language model is read at rows that are known, so there texts of several lengths run together, padded on the right,
which the model does not see. Leave-one-out, by tokens or by sentences, is the slow reference for fast methods: one
forward pass for each of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.capture.recording.continuations import sequences_of, summed
from vitrail.capture.residuals import close
from vitrail.capture.shadow import dtypes_of
from vitrail.errors import InputError, OptionError, VitrailError
from vitrail.methods.options import check_count, show_progress, special_tokens
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.models.texts import Span, pieces_of, sentences
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner

Keep = Bool[Tensor, "m t"]
COUNTS = {1: "one is", 2: "two are"}


@dataclass(frozen=True)
class Ablated:
    """One sample of a batch, with what may be removed from it.

    Args:
        context: the tokens that may be removed.
        real: the tokens that are no padding.
        lengths: arguments of the model that are the number of tokens that are kept, or off by so many.
    """

    runner: Runner
    sample: int
    context: Bool[Tensor, " t"]
    real: Bool[Tensor, " t"]
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def continues(self) -> bool:
        """Return True if the scalar is the answer of a causal language model, read at rows that are known."""
        return self.runner.part.rows is not None and not sequences_of(self.runner.inputs).decoder

    @cached_property
    def whole(self) -> Float[Tensor, ""]:
        """Return the scalar of the text alone, with all of its tokens."""
        return self.scores(self.real[None], batch=1)[0]

    def scores(self, keep: Keep, *, batch: int) -> Float[Tensor, " m"]:
        """Return the scalar of the sample with only some of its tokens, some ablations at a time."""
        keep = keep & self.real
        if self.continues and self.runner.inputs.attention_mask is not None:  # padding on the right is not seen
            parts = show_progress(keep.split(batch), f"{len(keep)} ablations")
            return torch.cat([self._some(some) for some in parts])
        lengths, places = keep.sum(dim=1), list[Tensor]()
        for length in lengths.unique():
            places += (lengths == length).nonzero()[:, 0].split(batch)
        found = [self._some(keep[some]) for some in show_progress(places, f"{len(keep)} ablations")]
        return torch.cat(found)[torch.cat(places).argsort()]

    def _some(self, keep: Keep) -> Float[Tensor, " m"]:
        """Run ablations together, or one by one where the model takes single texts only; name one that takes none."""
        try:
            return self._together(keep)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if isinstance(error, VitrailError) and not _is_of_the_model(error):
                raise
            if len(keep) > 1:
                return torch.cat([self._some(one) for one in keep.split(1)])
            most, whole = int(keep.sum(dim=1).max()), keep.shape[1]
            if most == whole:
                raise
            said = error.__cause__ if isinstance(error, VitrailError) else error  # all tokens alone did not fail
            raise InputError(
                f"{type(self.runner.model).__name__} was run on {most} of {whole} tokens, because this method removes "
                f"some, and fails there: {said}. Use a method that runs the model on all tokens, such as gae "
                "or integrated_gradients."
            ) from error

    def _together(self, keep: Keep) -> Float[Tensor, " m"]:
        """Run ablations together, or one by one where one of them has another answer alone.

        A model that was given one text may look at the first text for all, as where it exits early.
        """
        found = self._run(keep)
        if len(keep) == 1 or self.runner.inputs.batch > 1:
            return found
        if close(self._run(keep[-1:]), found[-1:], dtypes_of(self.runner.model)):
            return found
        return torch.cat([self._run(one) for one in keep.split(1)])

    def _run(self, keep: Keep) -> Float[Tensor, " m"]:
        """Return the scalar of ablations in one call of the model."""
        order = (~keep).int().sort(dim=1, stable=True).indices[:, : int(keep.sum(dim=1).max())]
        inputs = _reordered(self.runner.inputs, self.sample, order, keep.gather(1, order))
        inputs = replace(inputs, kwargs=inputs.kwargs | _counted(inputs, self.lengths, keep.sum(dim=1)))
        rows = torch.full((len(keep),), self.sample, device=keep.device)
        part = self.runner.part
        if self.continues:
            return self._continued(inputs, keep)
        if part.position is None:
            return self.runner.answer(inputs, lambda logits: part.read(logits, rows))
        place = keep[:, : int(part.position[self.sample]) + 1].sum(dim=1) - 1

        def read(logits: Tensor) -> Tensor:
            # The row has moved. It stands at every position, so it is read wherever the scalar reads.
            here = logits[torch.arange(len(keep), device=logits.device), place.to(logits.device)]
            return part.read(here[:, None].expand(-1, keep.shape[1], -1), rows)

        return self.runner.answer(inputs, read)

    def _continued(self, inputs: Inputs, keep: Keep) -> Float[Tensor, " m"]:
        """The scalar of the answer, whose columns have moved to the left."""
        weights, ids, target = self.runner.part.rows, self.runner.inputs.ids, self.runner.part.target
        assert weights is not None
        assert ids is not None
        columns = (weights[self.sample] > 0).roll(1).nonzero()[:, 0]
        before = keep.cumsum(dim=1)[:, columns] - 2
        if bool((before < 0).any()):
            raise InputError("no token is left before the answer, so nothing predicts it. Keep part of the context.")
        samples = torch.arange(len(keep), device=keep.device)[:, None].expand_as(before)
        wanted = ids[self.sample, columns].expand_as(before)
        rows = before.unique()

        def read(logits: Float[Tensor, "m s v"]) -> Float[Tensor, " m"]:
            # A model whose head is not known gives the logits of all rows.
            at = torch.searchsorted(rows, before) if logits.shape[1] == len(rows) else before
            found = logits[samples, at].flatten(0, 1)
            return summed(found, wanted.flatten(), samples.flatten(), len(keep), target.scalar)

        return self.runner.answer(inputs, read, rows=rows)


def ablated(runner: Runner, sample: int, *, guess: bool = True) -> Ablated:
    """Return a sample and its tokens that may be removed: before the answer, or all but special ones and the one read.

    Args:
        guess: which tokens are special where the inputs do not say so: the first, the last and all that equal them.
    """
    every, part = runner.run.patches(runner.run.valid), runner.part
    _check_places(runner)
    valid = every[sample]
    if part.rows is not None and not sequences_of(runner.inputs).decoder:
        first = (part.rows[sample] > 0).int().argmax() + 1
        return Ablated(runner, sample, valid & (torch.arange(len(valid), device=valid.device) < first), valid)
    context = valid.clone()
    if runner.inputs.special is not None or (guess and runner.inputs.ids is not None):
        measured = replace(runner.inputs, attention_mask=every.to(runner.inputs.shown.device, torch.int64))
        context &= ~special_tokens(measured)[sample].to(context.device)
    if part.position is not None:
        context[part.position[sample]] = False
    return Ablated(runner, sample, context, valid)


def _check_places(runner: Runner) -> None:
    """Refuse a signal whose tokens are not its places in order: what is cut out of it would be no token."""
    labels, places = runner.run.origin.labels, runner.inputs.shown.shape[1]
    if labels is None:
        return
    found = [label.split(",")[0] for label in labels]
    if any(found == [f"{name} {i}" for i in range(places)] for name in ("place", "row")):
        return
    raise InputError(
        f"this method removes tokens, but the {len(labels)} tokens of this model are not the {places} places of its "
        f"input of shape {tuple(runner.inputs.shown.shape)}: the first one shows {labels[0]}. Use a method that runs "
        "the model on the whole signal, such as gae or integrated_gradients."
    )


def _is_of_the_model(error: VitrailError) -> bool:
    """Return True if an error of ours says what the model's own code raised."""
    return error.__cause__ is not None and not isinstance(error.__cause__, VitrailError)


def _reordered(inputs: Inputs, sample: int, order: Int[Tensor, "m s"], real: Bool[Tensor, "m s"]) -> Inputs:
    """Return the inputs of one sample, once for each ablation, with the tokens that are kept first."""
    length = inputs.shown.shape[1]

    def moved(name: str, x: Any) -> Any:  # noqa: ANN401
        if not isinstance(x, Tensor) or name in inputs.shared or x.ndim == 0:
            return x
        if name == "position_ids":
            return _positions(x, sample, order, real)
        if x.shape[0] != inputs.batch and x.shape[:2] != (1, length):
            return x
        number = sample if x.shape[0] == inputs.batch else 0
        one = x[number : number + 1].expand(len(order), *x.shape[1:])
        if name.startswith("decoder"):
            return one
        if "mask" in name and x.ndim == 4 and x.shape[2:] == (length, length):
            return _picked(_picked(one, order, 2), order, 3)
        return _picked(one, order, 1) if x.shape[1:2] == (length,) else one

    kwargs = {name: moved(name, x) for name, x in inputs.kwargs.items()}
    mask = real.to(inputs.shown.device, torch.int64)
    if inputs.attention_mask is not None or not bool(real.all()):
        kwargs["attention_mask"] = mask
    args = tuple(moved("", x) for x in inputs.args)
    ids = None if inputs.ids is None else moved("", inputs.ids)
    return replace(inputs, args=args, kwargs=kwargs, batch=len(order), ids=ids, attention_mask=mask, tokens=None)


def _counted(inputs: Inputs, lengths: Mapping[str, int], kept: Int[Tensor, " m"]) -> dict[str, Tensor]:
    """Return the arguments that say how many tokens there are, for so many."""
    return {name: (kept + more).to(inputs.kwargs[name]).view_as(inputs.kwargs[name]) for name, more in lengths.items()}


def with_lengths(of: Ablated) -> Ablated:
    """Return the sample with the arguments known that hold its number of tokens; what they leave out is padding.

    Whether an argument is such a number is measured: with a smaller one, the last token must not matter.
    """
    for name, given in _whole_numbers(of).items():
        first = of.real & (of.real.cumsum(dim=0) <= given[of.sample])
        named = "len" in name.lower()
        if _is_length(of, name, first, named=named):
            of = replace(of, context=of.context & first, real=first, lengths={**of.lengths, name: 0})
        elif named or (_at_one_row(of) and given == _real_tokens(of)):
            raise InputError(
                f"the argument {name!r} holds one whole number for each text, {given[of.sample]} for text {of.sample} "
                f"of {int(of.real.sum())} tokens. It seems to be a length, but it is not known what the model does "
                "with it, so no token can be removed. Use a method that runs the model on all tokens, such as gae or "
                "integrated_gradients."
            )
    return of


def _whole_numbers(of: Ablated) -> dict[str, list[int]]:
    """Return the arguments that hold one whole number for each sample, of this one no more than it has tokens."""
    inputs, found = of.runner.inputs, {}
    for name, x in inputs.kwargs.items():
        whole = isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool)
        of_samples = whole and x.shape in ((inputs.batch,), (inputs.batch, 1)) and name not in inputs.shared
        if of_samples and x is not inputs.shown and x is not inputs.attention_mask:
            given = x.flatten().tolist()
            if 1 <= given[of.sample] <= int(of.real.sum()) > 1:
                found[name] = given
    return found


def _real_tokens(of: Ablated) -> list[int]:
    return of.runner.run.patches(of.runner.run.valid).sum(dim=1).tolist()


def _at_one_row(of: Ablated) -> bool:
    """Return True if the answer is read at rows that move with the tokens, so that answers cannot be compared."""
    return of.continues or of.runner.part.position is not None


def _is_length(of: Ablated, name: str, first: Bool[Tensor, " t"], *, named: bool) -> bool:
    """Return True if the model reads just as many tokens as an argument says."""
    if _at_one_row(of):
        return False
    count = int(first.sum())
    if count == 1:
        return named
    shorter = first & (first.cumsum(dim=0) < count)
    try:
        one = replace(of, lengths={**of.lengths, name: -1}).scores(first[None], batch=1)
        other = replace(of, lengths={**of.lengths, name: 0}).scores(shorter[None], batch=1)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # the model takes no smaller number for the same tokens
        return False
    return close(one, other, dtypes_of(of.runner.model))


def _picked(x: Tensor, order: Int[Tensor, "m s"], axis: int) -> Tensor:
    """Return the entries of each row along an axis, in its own order."""
    shape = [1] * x.ndim
    shape[0], shape[axis] = order.shape
    wide = [-1 if i in (0, axis) else n for i, n in enumerate(x.shape)]
    return x.gather(axis, order.to(x.device).view(shape).expand(wide))


def _positions(given: Tensor, sample: int, order: Int[Tensor, "m s"], real: Bool[Tensor, "m s"]) -> Int[Tensor, "m s"]:
    """Return the positions of the tokens in a text without the others: each run that counts by one is counted again.

    Packed texts start anew in the middle, and so do their positions.
    """
    if given.ndim > 2:
        raise InputError(
            f"position_ids of shape {tuple(given.shape)} say where tokens stand in a picture or a film, so none can be "
            "removed. Use a method that runs the model on all tokens, such as gae or integrated_gradients."
        )
    old = given if given.ndim == 1 else given[sample if len(given) > 1 else 0]
    begins = torch.ones_like(old, dtype=torch.bool)
    begins[1:] = old[1:] != old[:-1] + 1
    order, real = order.to(old.device), real.to(old.device)
    run = (begins.cumsum(dim=0) - 1)[order]
    moves = torch.ones_like(real)
    moves[:, 1:] = run[:, 1:] != run[:, :-1]
    count = torch.arange(order.shape[1], device=old.device).expand_as(order)
    return ((old[begins])[run] + count - (count * moves).cummax(dim=1).values) * real


def sources_of(of: Ablated, given: Sequence[Span] | None, *, least: int = 2) -> list[Bool[Tensor, " t"]]:
    """The tokens of each source: spans of columns, or the sentences of the context.

    Args:
        least: how many there have to be.
    """
    if given is None:
        tokens = of.runner.inputs.tokens
        assert tokens is not None
        columns = of.context.nonzero()[:, 0].tolist()
        first, last = columns[0], columns[-1] + 1
        given = [(first + a, first + b) for a, b in sentences(pieces_of(tokens[of.sample][first:last]))]
    places = torch.arange(len(of.context), device=of.context.device)
    found = [of.context & (places >= start) & (places < stop) for start, stop in given]
    found = [source for source in found if bool(source.any())]
    if len(found) < least:
        raise InputError(
            f"the context has {len(found)} source, and at least {COUNTS[least]} needed to compare them. Give "
            "sources=[(start, stop), ...] in columns of the input, or use leave_one_out, which removes single tokens."
        )
    return found


def check_spans(given: object) -> None:
    """Raise if sources are given and are no spans of columns."""
    for span in given if isinstance(given, Sequence) else ():
        pair = isinstance(span, Sequence) and len(span) == 2 and all(isinstance(x, Integral) for x in span)
        if not pair or not 0 <= span[0] < span[1]:
            raise OptionError(
                f"sources={given!r:.200}, but they are pairs of columns, 0 <= start < stop: [(start, stop), ...]."
            )


def check_sources(name: str, given: object) -> Callable[[nn.Module, Body, Inputs], None]:
    """A check that the sources are spans, or that the tokens are known as text, so that sentences can be found."""
    check_spans(given)

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        ids = None if inputs.ids is None else tuple(tuple(map(str, row)) for row in inputs.ids.tolist())
        if given is None and (inputs.tokens is None or inputs.tokens == ids):
            raise OptionError(
                f"{name} removes sentences, but the tokens are ids without text. Give what a fast tokenizer returned, "
                "or sources=[(start, stop), ...] in columns of the input."
            )

    return check


def losses(of: Ablated, sources: list[Tensor], *, batch: int) -> Tensor:
    """`s(all) - s(without the source)` for each source."""
    if not sources:
        raise InputError(
            f"nothing of a text of {int(of.real.sum())} real tokens can be removed: special tokens stay, which are "
            "the first and the last where nothing else is said. Take a method that reads gradients."
        )
    return of.whole - of.scores(torch.stack([of.real & ~source for source in sources]), batch=batch)


def same_answer(of: Ablated) -> str | None:
    """Return what to say where the text without its padding has another answer than in the batch.

    Raises:
        InputError: where it has another answer with its padding too, and only the other samples are gone.
    """
    runner, dtypes = of.runner, dtypes_of(of.runner.model)
    inside, alone = runner.part.scalar.detach()[of.sample], of.whole
    if close(alone, inside, dtypes):
        return None
    if not bool(of.real.all()):
        row = torch.tensor([of.sample], device=of.real.device)
        alone = runner.score(runner.inputs.take(row), row)[0]
    if not close(alone, inside, dtypes):
        raise InputError(
            f"the {runner.part.target} of sample {of.sample} is {inside.item():.6g}, and {alone.item():.6g} where the "
            "model runs on the same text alone: its answers are random, or depend on other samples or on how it is "
            "called, so what the answer loses without a token is not known. Use a method that runs the model once, "
            "such as gae."
        )
    return (
        f"the {runner.part.target} of sample {of.sample} is {inside.item():.6g}, and {of.whole.item():.6g} where the "
        "text runs alone, without its padding; scores are what that answer loses"
    )


def spread(values: Tensor, sources: list[Tensor]) -> Tensor:
    """One score for each token: a source's value in equal shares, so that the scores of a source add up to it."""
    return torch.stack([value * source / source.sum() for value, source in zip(values, sources, strict=True)]).sum(0)


def for_each_sample(runner: Runner, scores: Callable[[Ablated], Tensor], *, guess: bool = True) -> Result:
    """The scores of the tokens of every sample.

    Args:
        guess: as for `ablated`.
    """
    found, assumed = [], []
    for sample in range(runner.inputs.batch):
        of = with_lengths(ablated(runner, sample, guess=guess))
        differs = same_answer(of)
        assumed += [] if differs is None else [differs]
        found.append(scores(of))
    # A text that runs alone has no padding, so the answer may read it where the batch is explained.
    reached = runner.run.reached(replace(runner.part, needed=False)) if runner.run.masked else None
    return Result(runner.run.among_tokens(torch.stack(found)), assumed=tuple(assumed), reached=reached)


def build_leave_one_out(*, batch: int = 8) -> RerunMethod:
    """The fall of the target when one token is removed, token by token.

    Args:
        batch: how many ablations run at a time.
    """
    check_count("batch", batch)

    def scores(of: Ablated) -> Tensor:
        places = of.context.nonzero()[:, 0]
        if int(of.real.sum()) == len(places) == 1:
            raise InputError(f"text {of.sample} has one token, and nothing is left without it. Use another method.")
        sources = [torch.arange(len(of.real), device=places.device) == place for place in places]
        return spread(losses(of, sources, batch=batch), sources)

    return RerunMethod(lambda runner: for_each_sample(runner, scores, guess=False))


def build_sentence_drop(*, sources: list | tuple | None = None, batch: int = 8) -> RerunMethod:
    """The fall of the target when one sentence is removed, shared equally by its tokens.

    Args:
        sources: spans `(start, stop)` of columns to remove instead of the sentences of the context.
        batch: how many ablations run at a time.
    """
    check_count("batch", batch)

    def scores(of: Ablated) -> Tensor:
        chosen = sources_of(of, sources)
        return spread(losses(of, chosen, batch=batch), chosen)

    return RerunMethod(lambda runner: for_each_sample(runner, scores), check=check_sources("sentence_drop", sources))
