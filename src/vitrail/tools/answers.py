"""Answers of language models: which tokens of the context each part of an answer rests on.

`answer` explains columns of `input_ids` that are an answer already; `generations.generate` makes one from a prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.api import compare
from vitrail.api.requests import MethodSpec
from vitrail.attribution import Attribution
from vitrail.capture.recording.continuations import Sequences, sequences_of, spans
from vitrail.errors import InputError, OptionError, is_whole, suggest
from vitrail.methods import METHODS
from vitrail.models.inputs import Inputs, read_inputs
from vitrail.models.prompts import decoded
from vitrail.models.texts import Span, pieces_of, sentences, words
from vitrail.targets import continuation

Cut = Callable[[Sequence[str]], list[Span]]
UNITS: dict[str, Cut] = {
    "token": lambda pieces: [(index, index + 1) for index in range(len(pieces))],
    "word": words,
    "sentence": sentences,
    "answer": lambda pieces: [(0, len(pieces))],
}
"""How an answer is cut into the parts that are explained one by one."""
WITHOUT_TEXT = frozenset({"token", "answer"})
SINKS = ("keep", "drop")


@dataclass(frozen=True, eq=False)
class Answer:
    """One row of scores for each part of an answer, over all columns of the input.

    Args:
        table: samples with fewer parts than others have rows of zeros at the end.
        units: for each sample, the columns of its parts.
        sink: for each sample and part, the share of the scores on the context that the first real token holds.
        hops: what each further hop through the reasoning added, if it was asked for.
        method: the name of the method.
        tokens: the tokens of the columns as text, where that is known; of an encoder-decoder model, of its source.
        provenance: where the numbers come from.
        own: the part of the table that skip connections carry to the rows that predict the answer, where a method has
            one. It says nothing of what the answer rests on; pages and citations leave it out.
    """

    table: Float[Tensor, "b u n"]
    units: tuple[tuple[Span, ...], ...]
    sink: Float[Tensor, "b u"]
    method: str
    tokens: tuple[tuple[str, ...], ...] | None = None
    hops: Float[Tensor, "b h u n"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    own: Float[Tensor, "b u n"] | None = None

    def __repr__(self) -> str:
        """One line."""
        shape = " x ".join(map(str, self.table.shape))
        return f"Answer({self.method}, table of {shape}: samples, parts of the answer, columns)"


def answer(  # noqa: PLR0913  (the public signature)
    model: object,
    inputs: Tensor | Mapping[str, Any],
    start: Any,  # noqa: ANN401
    stop: Any = None,  # noqa: ANN401
    *,
    tokenizer: Any = None,  # noqa: ANN401
    unit: str = "token",
    method: str | None = None,
    preset: str = "recommended",
    scalar: str = "log_probability",
    sink: str = "keep",
    hops: int | None = None,
    reasoning: Span | None = None,
    memory: str = "auto",
    **options: Any,  # noqa: ANN401
) -> Answer:
    """Return the columns that each part of an answer rests on: one forward pass, one backward pass for each part.

    Args:
        model: a causal or encoder-decoder language model.
        inputs: as for `explain`, the answer included.
        start: the column of the answer's first token, as for `targets.continuation`.
        stop: the column after its last; None is the end of the text.
        tokenizer: the model's own, to find words and sentences where the inputs are ids.
        unit: `token`, `word`, `sentence`, or `answer` for all of it at once.
        method: a name of `vitrail.METHODS`; None is the default for continuations.
        preset: the method's preset.
        scalar: `log_probability`, or `log_odds`, whose gradient does not vanish where the model is sure; as for
            `targets.continuation`.
        sink: `keep` the scores of the first real token, or `drop` them. Its share is in `Answer.sink` either way.
        hops: how often relevance on the reasoning is passed on to what the reasoning rests on. A method with hops of
            its own, such as `flashtrace`, is given them; None is its default, and for other methods none.
        reasoning: the columns of what was generated before the answer; needed for hops, but not by `flashtrace`.
        memory: `low` runs each block again for the backward pass instead of keeping it, as for `explain`.
        **options: the method's own options.
    """
    settings = AnswerSettings(tokenizer, unit, scalar, sink, memory)
    methods = [(method, {"preset": preset, **options})]
    return explain_answers(model, inputs, (start, stop), methods, settings, hops=hops, reasoning=reasoning)[0]


@dataclass(frozen=True)
class AnswerSettings:
    """The settings with which answers are cut, explained and shown, as for `answer`."""

    tokenizer: Any = None
    unit: str = "token"
    scalar: str = "log_probability"
    sink: str = "keep"
    memory: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what is not a choice."""
        for name, choices in (("unit", UNITS), ("sink", SINKS)):
            if (given := getattr(self, name)) not in choices:
                raise OptionError(f"{name}={given!r} is not a choice. {suggest(given, choices)}")


def explain_answers(
    model: object,
    inputs: Tensor | Mapping[str, Any],
    columns: tuple[Any, Any],
    methods: Sequence[tuple[str | None, Mapping[str, Any]]],
    settings: AnswerSettings,
    *,
    hops: int | None,
    reasoning: Span | None,
) -> list[Answer]:
    """Explain an answer by each method; those that read a recording share one forward pass. Arguments as `answer`.

    Args:
        columns: `start` and `stop`.
        methods: each with its options, a preset among them.
    """
    _check_hops(hops, reasoning)
    tokenizer, sink = settings.tokenizer, settings.sink
    read = read_inputs(inputs)
    sequences = sequences_of(read)
    _check_decoder(model, sequences, hops)
    first, last = spans(continuation(*columns), sequences.real)
    pieces = _pieces(read, sequences, tokenizer, settings.unit)
    said = [row[a:b] for row, a, b in zip(pieces, first, last, strict=True)]
    if tokenizer is not None:
        said = [decoded(tokenizer, ids[a:b].tolist()) for ids, a, b in zip(sequences.ids, first, last, strict=True)]
    cut = UNITS[settings.unit]
    units = tuple(tuple((at + a, at + b) for a, b in cut(row)) for row, at in zip(said, first, strict=True))
    specs = [(method or "auto", _with_hops(method, options, hops, reasoning)) for method, options in methods]
    explain = partial(_rows, partial(compare, model, inputs, memory=settings.memory), settings.scalar)
    by_method = explain(specs, units)
    passing = [None] * len(specs)
    if (others := [spec for spec in specs if not _has_hops(spec[0])]) and _hop_columns(hops, reasoning, first):
        assert reasoning is not None
        tokens = tuple((place, place + 1) for place in range(*reasoning))
        rows = iter(explain(others, [tokens] * len(units)))
        passing = [None if _has_hops(name) else next(rows) for name, _ in specs]
    real, ends = sequences.real, first
    if sequences.decoder:  # the tables are over the source, all of which is context
        scores = by_method[0][0].scores
        real, mask = torch.ones_like(scores).bool(), read.kwargs.get("attention_mask")
        real = mask.bool() if isinstance(mask, Tensor) and mask.shape == real.shape else real
        ends = [scores.shape[1]] * len(scores)
    options = {"unit": settings.unit, "sink": sink, "scalar": settings.scalar} | ({"hops": hops} if hops else {})
    made = []
    for (name, _), found, rows in zip(specs, by_method, passing, strict=True):
        table, own, added = _tables(name, found, units, rows, hops, reasoning)
        table, share = without_sink(table, real, ends, sink)
        known = tokenizer is not None or found[0].tokens is not None
        made.append(
            Answer(
                table,
                units,
                share,
                found[0].method,
                found[0].tokens if sequences.decoder else tuple(map(tuple, pieces)) if known else None,
                added,
                {**found[0].options, **options},
                dict(found[0].provenance),
                own=None if own is None else without_sink(own, real, ends, sink)[0],
            )
        )
    return made


def _has_hops(method: str | None) -> bool:
    """Return True if a method passes its rows on itself."""
    return method is not None and method in METHODS and "hops" in METHODS[method].options


def _with_hops(
    method: str | None, options: Mapping[str, Any], hops: int | None, reasoning: Span | None
) -> dict[str, Any]:
    """Return the options of a method, with hops and reasoning where it takes them."""
    passing = {"hops": hops, "reasoning": reasoning and tuple(reasoning)} if _has_hops(method) else {}
    return {**{name: value for name, value in passing.items() if value is not None}, **options}


def _tables(
    method: str,
    found: Sequence[Attribution],
    units: Sequence[Sequence[Span]],
    passing: Sequence[Attribution] | None,
    hops: int | None,
    reasoning: Span | None,
) -> tuple[Float[Tensor, "b u n"], Float[Tensor, "b u n"] | None, Float[Tensor, "b h u n"] | None]:
    """Return the table of one method, the part of it that skip connections carry, and what each hop added.

    Args:
        passing: an attribution of each token of the reasoning, where relevance is passed on through it.
    """
    table, parts = _stacked([one.scores for one in found], units), [one.own for one in found if one.own is not None]
    own = _stacked(parts, units) if len(parts) == len(found) else None
    if _has_hops(method):
        return table, own, _hops_of_method(found, units)
    if passing is None or reasoning is None or hops is None:
        return table, own, None
    added = _hops(passing, table if own is None else table - own, hops, reasoning)
    return table + added.sum(dim=1), own, added


def _check_hops(hops: object, reasoning: object) -> None:
    """Raise if hops are no number, or the reasoning is no pair of columns."""
    if hops is not None and (not is_whole(hops) or hops < 0):
        raise OptionError(f"hops={hops!r}, but it is a number of hops, at least 0.")
    pair = isinstance(reasoning, Sequence) and len(reasoning) == 2 and all(map(is_whole, reasoning))
    if reasoning is not None and not pair:
        raise OptionError(f"reasoning={reasoning!r}, but it is a pair of columns (start, stop).")


def _check_decoder(model: object, sequences: Sequences, hops: int | None) -> None:
    """Raise if an encoder-decoder model has no text that it continues, or hops are to pass through that text."""
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) and not sequences.decoder:
        raise InputError(
            f"{type(model).__name__} continues a text of its decoder, but the inputs have no decoder_input_ids: give "
            "the start token and the answer there."
        )
    if sequences.decoder and hops:
        raise OptionError(
            f"hops={hops}: hops pass through columns before the answer that have scores, but the scores of an "
            "encoder-decoder model are those of its source. Leave hops out."
        )


def _hops_of_method(found: Sequence[Attribution], units: Sequence[Sequence[Span]]) -> Float[Tensor, "b h u n"] | None:
    """Return the scores that each hop of a method of its own added; None without hops."""
    layers = [one.layers[:, 1:] for one in found if one.layers is not None]
    if len(layers) < len(found) or not layers[0].shape[1]:
        return None
    return torch.stack([_stacked([one[:, hop] for one in layers], units) for hop in range(layers[0].shape[1])], dim=1)


def _pieces(inputs: Inputs, sequences: Sequences, tokenizer: Any, unit: str) -> list[tuple[str, ...]]:  # noqa: ANN401
    """The tokens as text, by the tokenizer or by what it returned; ids where neither is known and no text is needed."""
    ids = sequences.ids.tolist()
    if tokenizer is not None:
        largest = max(map(max, ids))
        if largest >= len(tokenizer):
            raise InputError(
                f"token {largest} is not among the {len(tokenizer)} of the tokenizer. Is it the model's own tokenizer?"
            )
        return [pieces_of(tokenizer.convert_ids_to_tokens(row)) for row in ids]
    known = None if sequences.decoder else inputs.tokens
    numbers = [tuple(map(str, row)) for row in ids]
    if unit not in WITHOUT_TEXT and (known is None or list(known) == numbers):
        raise InputError(f"unit={unit!r} needs the tokens as text: pass tokenizer=, or what a fast tokenizer returned.")
    return numbers if known is None else [pieces_of(row) for row in known]


def _rows(
    explain: Callable[..., Sequence[Attribution]],
    scalar: str,
    specs: Sequence[MethodSpec],
    units: Sequence[Sequence[Span]],
) -> list[Sequence[Attribution]]:
    """One attribution for each part by each method; samples with fewer parts repeat their last one."""
    count = max(map(len, units))
    padded = [[*row, *[row[-1]] * (count - len(row))] for row in units]
    starts, stops = ([[row[index][end] for row in padded] for index in range(count)] for end in (0, 1))
    targets = [continuation(a, b, scalar=scalar) for a, b in zip(starts, stops, strict=True)]
    found = explain(specs, targets=targets)
    return [found[place :: len(specs)] for place in range(len(specs))]


def _stacked(rows: Sequence[Float[Tensor, "b n"]], units: Sequence[Sequence[Span]]) -> Float[Tensor, "b u n"]:
    """One row for each part; zeros for the parts that a sample does not have."""
    table = torch.stack(list(rows), dim=1)
    counts = torch.tensor([len(row) for row in units], device=table.device)
    return table * (torch.arange(table.shape[1], device=table.device) < counts[:, None])[:, :, None]


def without_sink(
    table: Float[Tensor, "b u n"], real: Tensor, first: Sequence[int], sink: str
) -> tuple[Float[Tensor, "b u n"], Float[Tensor, "b u"]]:
    """The table with or without the first real token, and the share of the context's scores which that token holds."""
    places = real.int().argmax(dim=1)
    context = torch.arange(table.shape[2], device=table.device) < torch.tensor(first, device=table.device)[:, None]
    size = table.abs() * context[:, None]
    rows = torch.arange(len(table), device=table.device)
    share = size[rows, :, places] / size.sum(dim=2).clamp(min=torch.finfo(size.dtype).tiny)
    if sink == "drop":
        table = table.clone()
        table[rows, :, places] = 0.0
    return table, share


def _hop_columns(hops: int | None, reasoning: Span | None, first: Sequence[int]) -> bool:
    """Return True if relevance is passed on through columns before the answer, or raise where it cannot be."""
    if ((hops or 0) > 0) != (reasoning is not None):
        raise OptionError(
            f"hops={hops or 0} and reasoning={reasoning}: give both, or none. Hops pass through the reasoning."
        )
    if reasoning is None:
        return False
    start, stop = reasoning
    if not 0 < start < stop <= min(first):
        raise OptionError(
            f"reasoning={reasoning} is no span of columns before the answer, which begins at {min(first)}."
        )
    return True


def _hops(
    found: Sequence[Attribution], table: Float[Tensor, "b u n"], hops: int, reasoning: Span
) -> Float[Tensor, "b h u n"]:
    """Return the scores added by each hop: the positive ones on the reasoning, passed on to what its tokens rest on.

    The rows that pass relevance on have a sum of one over the columns before the token they explain.
    """
    start, stop = reasoning
    # A row's own part says nothing of what it rests on, and would be most of it where the model is sure.
    parts = [one.scores if one.own is None else one.scores - one.own for one in found]
    columns = torch.arange(table.shape[2], device=table.device)
    passing = torch.stack(parts, dim=1).clamp(min=0) * (columns < columns[start:stop, None])
    passing = passing / passing.sum(dim=2, keepdim=True).clamp(min=torch.finfo(passing.dtype).tiny)
    added, now = [], table
    for _ in range(hops):
        now = now[:, :, start:stop].clamp(min=0) @ passing
        added.append(now)
    return torch.stack(added, dim=1)
