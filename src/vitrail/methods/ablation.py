"""Run a language model again on a text from which tokens are removed.

Removed tokens are cut out, and the text is padded on the right. A causal model does not see what stands on the right,
so the answer has the same columns and positions as in a text that never held those tokens. Leave-one-out, by tokens or
by sentences, is the slow reference for fast methods: one forward pass for each of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.capture.continuations import sequences_of, summed
from vitrail.errors import InputError, OptionError, VitrailError
from vitrail.methods.options import check_count, special_tokens
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
    """

    runner: Runner
    sample: int
    context: Bool[Tensor, " t"]
    real: Bool[Tensor, " t"]

    def scores(self, keep: Keep, *, batch: int) -> Float[Tensor, " m"]:
        """The scalar of the sample, with only some of its tokens, some ablations at a time."""
        return torch.cat([self._of_any_length(some & self.real) for some in keep.split(batch)])

    def _of_any_length(self, keep: Keep) -> Float[Tensor, " m"]:
        """Ablations of all lengths at once where the model is given a mask, else those of one length at a time."""
        lengths = keep.sum(dim=1)
        if self.runner.inputs.attention_mask is not None or bool((lengths == lengths[0]).all()):
            return self._some(keep)
        places = [(lengths == length).nonzero()[:, 0] for length in lengths.unique()]
        found = torch.cat([self._some(keep[place]) for place in places])
        return found[torch.cat(places).argsort()]

    def _some(self, keep: Keep) -> Float[Tensor, " m"]:
        """The scalar of ablations that run together; a model that takes no shorter texts is named as such."""
        try:
            return self._run(keep)
        except (VitrailError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            most, whole = int(keep.sum(dim=1).max()), keep.shape[1]
            if most == whole:
                raise
            raise InputError(
                f"{type(self.runner.model).__name__} was run on {most} of {whole} tokens, because this method removes "
                f"some, and fails there: {error}. Use a method that runs the model on all tokens, such as gae "
                "or integrated_gradients."
            ) from error

    def _run(self, keep: Keep) -> Float[Tensor, " m"]:
        order = (~keep).int().sort(dim=1, stable=True).indices[:, : int(keep.sum(dim=1).max())]
        inputs = _reordered(self.runner.inputs, self.sample, order, keep.gather(1, order))
        rows = torch.full((len(keep),), self.sample, device=keep.device)
        part = self.runner.part
        if part.rows is not None and not sequences_of(self.runner.inputs).decoder:
            return self._continued(inputs, keep)
        if part.position is None:
            return self.runner.answer(inputs, lambda logits: part.read(logits, rows))
        place = keep[:, : int(part.position[self.sample]) + 1].sum(dim=1) - 1
        target = part.target.take(rows)
        return self.runner.answer(inputs, lambda logits: target(logits[torch.arange(len(keep)), place]))

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


def ablated(runner: Runner, sample: int) -> Ablated:
    """A sample, and its tokens that may be removed: before the answer, or all but special ones and the one read."""
    every, part = runner.run.patches(runner.run.valid), runner.part
    valid = every[sample]
    if part.rows is not None and not sequences_of(runner.inputs).decoder:
        first = (part.rows[sample] > 0).int().argmax() + 1
        return Ablated(runner, sample, valid & (torch.arange(len(valid), device=valid.device) < first), valid)
    context = valid.clone()
    if runner.inputs.ids is not None:
        measured = replace(runner.inputs, attention_mask=every.to(runner.inputs.ids.device, torch.int64))
        context &= ~special_tokens(measured)[sample].to(context.device)
    if part.position is not None:
        context[part.position[sample]] = False
    return Ablated(runner, sample, context, valid)


def _reordered(inputs: Inputs, sample: int, order: Int[Tensor, "m s"], real: Bool[Tensor, "m s"]) -> Inputs:
    """The inputs of one sample, once for each ablation, with the tokens that are kept first."""
    length = inputs.shown.shape[1]

    def moved(name: str, x: Any) -> Any:  # noqa: ANN401
        if not isinstance(x, Tensor) or name in inputs.shared or x.shape[:1] != (inputs.batch,):
            return x
        one = x[sample : sample + 1].expand(len(order), *x.shape[1:])
        if name.startswith("decoder") or x.shape[1:2] != (length,):
            return one
        picked = order.view(*order.shape, *[1] * (x.ndim - 2)).expand(*order.shape, *x.shape[2:])
        return one.gather(1, picked.to(x.device))

    kwargs = {name: moved(name, x) for name, x in inputs.kwargs.items() if name != "position_ids"}
    mask = real.to(inputs.shown.device, torch.int64)
    if inputs.attention_mask is not None or not bool(real.all()):
        kwargs["attention_mask"] = mask
    args = tuple(moved("", x) for x in inputs.args)
    ids = None if inputs.ids is None else moved("", inputs.ids)
    return replace(inputs, args=args, kwargs=kwargs, batch=len(order), ids=ids, attention_mask=mask, tokens=None)


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
    keep = torch.stack([of.real, *(of.real & ~source for source in sources)])
    found = of.scores(keep, batch=batch)
    return found[0] - found[1:]


def spread(values: Tensor, sources: list[Tensor]) -> Tensor:
    """One score for each token: a source's value in equal shares, so that the scores of a source add up to it."""
    return torch.stack([value * source / source.sum() for value, source in zip(values, sources, strict=True)]).sum(0)


def for_each_sample(runner: Runner, scores: Callable[[Ablated], Tensor]) -> Result:
    """The scores of the tokens of every sample."""
    found = [scores(ablated(runner, sample)) for sample in range(runner.inputs.batch)]
    return Result(runner.run.among_tokens(torch.stack(found)))


def build_leave_one_out(*, batch: int = 8) -> RerunMethod:
    """The fall of the target when one token is removed, token by token.

    Args:
        batch: how many ablations run at a time.
    """
    check_count("batch", batch)

    def scores(of: Ablated) -> Tensor:
        places = of.context.nonzero()[:, 0]
        if len(places) == int(of.real.sum()):  # something has to be left to read
            places = places[:-1]
        sources = [torch.arange(len(of.real), device=places.device) == place for place in places]
        return spread(losses(of, sources, batch=batch), sources)

    return RerunMethod(lambda runner: for_each_sample(runner, scores))


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
