"""`vitrail.generate`: generate an answer, or take one, and say which passages of the context each part rests on."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InputError, OptionError, OutputError, as_path, is_whole
from vitrail.methods import DEFAULT_METHOD, DEFAULTS, METHODS, parse_spec
from vitrail.models.inputs import position_limit
from vitrail.models.prompts import (
    TEMPLATE,
    Message,
    Passage,
    check_answer,
    check_letters,
    decoded,
    generate_ids,
    read_prompt,
)
from vitrail.models.texts import Span, sentences
from vitrail.plots.page import answer_figure, answer_html
from vitrail.storage import encode
from vitrail.tools.answers import AnswerSettings, explain_answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT, VERSION = "vitrail generation", 1


@dataclass(frozen=True)
class Citation:
    """A passage that a part of the answer rests on.

    Args:
        score: its share of the part's scores on messages, documents and reasoning, the mean over methods.
        low: the lowest share by any of the methods.
        high: the highest.
    """

    passage: Passage
    score: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Generation:
    """An answer, its parts, and how much each rests on each passage of the context.

    Args:
        text: the answer.
        tokens: the tokens of prompt and answer as text.
        units: the parts of the answer; columns as in `tokens`.
        context: the passages of the prompt.
        tables: for each method, `[units, tokens]`, scores over all columns, without what skip connections carry to the
            rows themselves that predict the answer (`Answer.own`).
        sinks: for each method, the share of the scores on the context that the first token holds, by unit.
        provenance: for each method, where its numbers come from.
        hops: for each method, `[hops, units, tokens]`, what each hop through the reasoning added to its table.
    """

    text: str
    tokens: tuple[str, ...]
    units: tuple[Passage, ...]
    context: tuple[Passage, ...]
    tables: Mapping[str, Float[Tensor, "u n"]]
    sinks: Mapping[str, Float[Tensor, " u"]]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    hops: Mapping[str, Float[Tensor, "h u n"]] = field(default_factory=dict)

    @property
    def by_hop(self) -> Float[Tensor, "h u c"] | None:
        """The scores that each hop of reasoning added for each passage, by the first method; None without hops."""
        found = next(iter(self.hops.values()), None)
        return None if found is None else torch.stack([self._by_passage(one) for one in found])

    @property
    def table(self) -> Float[Tensor, "u c"]:
        """The scores of each passage in each part: the sum of its tokens' scores, by the first method."""
        return self._by_passage(next(iter(self.tables.values())))

    def _by_passage(self, table: Float[Tensor, "u n"]) -> Float[Tensor, "u c"]:
        return torch.stack([table[:, one.start : one.stop].sum(dim=1) for one in self.context], dim=1)

    def shares(self) -> Float[Tensor, "m u c"]:
        """For each method, the positive scores of the passages as shares that add up to one."""
        found = torch.stack([self._by_passage(table) for table in self.tables.values()]).clamp(min=0)
        return found / found.sum(dim=2, keepdim=True).clamp(min=torch.finfo(found.dtype).tiny)

    def cite(self, k: int = 3) -> list[list[Citation]]:
        """For each part of the answer, the k passages it rests on most, with an interval over the methods.

        What the chat template wrote is no passage; `template_share` says how much of the scores falls on it.
        """
        if not is_whole(k) or k < 1:
            raise OptionError(f"k={k!r}, but it is a number of passages, at least 1.")
        written = [i for i, one in enumerate(self.context) if one.source != TEMPLATE] or list(range(len(self.context)))
        shares = self.shares()[:, :, written]
        shares = shares / shares.sum(dim=2, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
        mean, low, high = shares.mean(dim=0), shares.amin(dim=0), shares.amax(dim=0)
        order = mean.argsort(dim=1, descending=True, stable=True)[:, :k].tolist()
        return [
            [Citation(self.context[written[i]], float(mean[u, i]), float(low[u, i]), float(high[u, i])) for i in row]
            for u, row in enumerate(order)
        ]

    def template_share(self) -> Float[Tensor, " u"]:
        """The share of each part's scores that falls on what the chat template wrote, the mean over methods."""
        return self.by_source().get(TEMPLATE, torch.zeros(len(self.units)))

    def by_source(self) -> dict[str, Float[Tensor, " u"]]:
        """Return the share of each message or document in each part: summed over passages, the mean over methods."""
        mean = self.shares().mean(dim=0)
        names = dict.fromkeys(one.source for one in self.context)
        return {
            name: mean[:, [i for i, one in enumerate(self.context) if one.source == name]].sum(dim=1) for name in names
        }

    def to_html(self) -> str:
        """A page of its own: point at a part of the answer, or move to it by keyboard, and the context is shaded."""
        return answer_html(self)

    def plot(self) -> "Figure":
        """The table as a figure."""
        return answer_figure(self)

    def _repr_html_(self) -> str:
        return answer_html(self, fragment=True)

    def __repr__(self) -> str:
        """One line."""
        methods = ", ".join(self.tables)
        return f"Generation({self.text!r}, {len(self.units)} parts on {len(self.context)} passages by {methods})"

    def __str__(self) -> str:
        """The answer with the passages each of its parts rests on."""
        lines = []
        for unit, cited in zip(self.units, self.cite(), strict=True):
            lines.append(f"{unit.text.strip()}")
            lines += [f"  {one.score:5.1%} {one.passage.source}: {one.passage.text.strip()}" for one in cited]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything, as JSON."""
        made: dict[str, Any] = {"format": FORMAT, "version": VERSION, "text": self.text, "tokens": self.tokens}
        made |= {name: [asdict(one) for one in getattr(self, name)] for name in ("units", "context")}
        made |= {name: _listed(getattr(self, name)) for name in ("tables", "sinks")}
        made |= {"provenance": encode(dict(self.provenance))} | ({"hops": _listed(self.hops)} if self.hops else {})
        return json.dumps(made, ensure_ascii=False)

    def save(self, path: str | Path) -> None:
        """Write everything to a JSON file, or the page where the name ends in .html."""
        target = as_path(path, "the file of an answer")
        page = target.suffix.lower() in {".html", ".htm"}
        try:
            target.write_text(self.to_html() if page else self.to_json(), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{target} cannot be written: {error.strerror}.") from error

    @staticmethod
    def load(path: str | Path) -> "Generation":
        """Return the generation that `save` wrote."""
        place = as_path(path, "the file of an answer")
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
            if found.get("format") != FORMAT or found.get("version") != VERSION:
                raise ValueError(f"it is no {FORMAT} of version {VERSION}")
            units, context = (tuple(Passage(**one) for one in found[name]) for name in ("units", "context"))
            tables, sinks, hops = (
                {name: torch.tensor(one) for name, one in some.items()}
                for some in (found["tables"], found["sinks"], found.get("hops", {}))
            )
            made = Generation(
                found["text"], tuple(found["tokens"]), units, context, tables, sinks, found["provenance"], hops
            )
            shape = (len(made.units), len(made.tokens))
            for name, table in made.tables.items():
                if tuple(table.shape) != shape:
                    raise ValueError(
                        f"the table of {name} has shape {tuple(table.shape)}, but {shape} belongs to its text"
                    )
            if not made.tables or made.sinks.keys() != made.tables.keys():
                raise ValueError("it has no tables, or not the same methods everywhere")
            return made
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputError(f"{path} cannot be read as a saved generation: {error}.") from error


def _listed(tables: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: table.tolist() for name, table in tables.items()}


def generate(  # noqa: PLR0913  (the public signature)
    model: Any,  # noqa: ANN401
    tokenizer: Any,  # noqa: ANN401
    prompt: str | Sequence[Message],
    *,
    answer: str | None = None,
    documents: Sequence[str] | None = None,
    unit: str = "sentence",
    method: str | Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    max_new_tokens: int = 64,
    generation: Mapping[str, Any] | None = None,
    scalar: str = "log_probability",
    sink: str = "keep",
    hops: int | None = None,
    reasoning: str | None = None,
    memory: str = "auto",
) -> Generation:
    """Generate an answer and explain it.

    Args:
        model: a causal language model of transformers. It is not changed.
        tokenizer: its own, a fast one.
        prompt: a text, or a list of messages for the chat template.
        answer: a given answer; nothing is generated.
        documents: texts the answer may rest on; they go before the prompt.
        unit: the parts of the answer that are explained: `token`, `word`, `sentence` or `answer`.
        method: a name of `vitrail.METHODS`, also with options, `"gae(readout=gradient)"`, or several, whose spread is
            the interval of `cite`; None is the default.
        options: the method's options; with several methods they go to all of them.
        max_new_tokens: how many tokens are generated at most.
        generation: further arguments of `model.generate`. Sampling needs a `seed` among them.
        scalar: `log_probability`, or `log_odds`, whose gradient does not vanish where the model is sure of its answer.
        sink: `keep` or `drop` the scores of the first token; `Generation.sinks` says how much it holds.
        hops: how often relevance on what was generated before the final answer is passed on to what that rests on; as
            for `vitrail.answer`.
        reasoning: the text that ends what comes before the final answer, such as `</think>`. The parts after it are
            explained, and the sentences before it are passages of the context. None with hops: all but the last
            sentence is reasoning.
        memory: `low` runs each block again for the backward pass instead of keeping it, as for `explain`.
    """
    _check_model(model, tokenizer)
    named = _methods(method)
    _check_values(answer, options, max_new_tokens, generation, reasoning)
    read = read_prompt(tokenizer, prompt, documents)
    if answer is None:
        ids = generate_ids(model, read.ids, max_new_tokens, generation)
    else:
        check_letters("answer", answer)
        ids = list(tokenizer(answer, add_special_tokens=False)["input_ids"])
    check_answer(tokenizer, prompt, ids)
    limit = position_limit(model)
    if limit is not None and len(read.ids) + len(ids) > limit:
        raise InputError(
            f"prompt and answer have {len(read.ids)} + {len(ids)} tokens, but {type(model).__name__} has {limit} "
            "positions."
        )
    inputs = {"input_ids": torch.tensor([[*read.ids, *ids]], device=next(model.parameters()).device)}
    after, begin = decoded(tokenizer, ids), len(read.ids)
    tokens = (*read.pieces, *after)

    def passages(spans: Iterable[Span], source: str) -> tuple[Passage, ...]:
        return tuple(Passage("".join(tokens[a:b]), a, b, source) for a, b in spans)

    thought = _reasoned(after, reasoning) if hops or reasoning is not None else 0
    reasons = passages([(begin + a, begin + b) for a, b in sentences(after[:thought])], "reasoning")
    cited = [(one.start, one.stop) for one in (*read.passages, *reasons) if one.source != TEMPLATE]
    specs = [(name, {**_sources(name, cited), **(options or {}), **own}) for _, name, own in named]
    made = explain_answers(
        model,
        inputs,
        (begin + thought, None),
        specs,
        AnswerSettings(tokenizer, unit, scalar, sink, memory),
        hops=hops or None,
        reasoning=(begin, begin + thought) if hops else None,
    )
    found = {label or one.method: one for (label, _, _), one in zip(named, made, strict=True)}
    return Generation(
        tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        tokens,
        passages(next(iter(found.values())).units[0], "answer"),
        (*read.passages, *reasons),
        {name: (one.table if one.own is None else one.table - one.own)[0].cpu() for name, one in found.items()},
        {name: one.sink[0].cpu() for name, one in found.items()},
        {name: dict(one.provenance) for name, one in found.items()},
        {name: one.hops[0].cpu() for name, one in found.items() if one.hops is not None},
    )


def _methods(given: object) -> list[tuple[str | None, str | None, Mapping[str, Any]]]:
    """The methods as they were written, `gae` or `gae(readout=gradient)` with name and options; None is the default."""
    if given is None:
        return [(None, None, {})]
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        raise OptionError(f"method={given!r}, but it is a name of vitrail.METHODS, or a list of some.")
    if len(set(texts)) < len(texts):
        raise OptionError(f"method={given!r} names one twice.")
    return [(text, *parse_spec(text, auto=True)) for text in texts]


def _check_values(answer: object, options: object, count: object, generation: object, reasoning: object) -> None:
    """Raise if an argument is of another kind than it has to be."""
    if answer is not None and not isinstance(answer, str):
        raise InputError(f"answer={answer!r:.80}, but a given answer is a text.")
    for name, value in (("options", options), ("generation", generation)):
        if value is not None and not isinstance(value, Mapping):
            raise OptionError(f"{name}={value!r:.80}, but it is a mapping of names to values.")
    if not is_whole(count) or count < 1:
        raise OptionError(f"max_new_tokens={count!r}, but it is a number of tokens, at least 1.")
    if reasoning is not None and (not isinstance(reasoning, str) or not reasoning):
        raise OptionError(f"reasoning={reasoning!r}, but it is the text that ends the reasoning, such as '</think>'.")


def _sources(method: str | None, passages: Sequence[Span]) -> dict[str, Any]:
    """The passages of prompt and reasoning, for methods that score whole passages; the chat template is none.

    A single passage can be compared to no other, and there is none where the template changes all messages: then the
    default scores single tokens.
    """
    if method is None and len(passages) < 2:
        return {}
    name = DEFAULTS["answer"][0] if method in (None, DEFAULT_METHOD) else method
    return {"sources": list(passages)} if name in METHODS and "sources" in METHODS[name].options else {}


def _reasoned(pieces: Sequence[str], end: str | None) -> int:
    """Return the number of generated tokens before the final answer."""
    if end is None:
        found = sentences(pieces)[-1][0]
        if found == 0:
            raise InputError(
                "the answer is one sentence, so nothing was generated before it that hops could pass through. Name "
                "what ends the reasoning, reasoning='</think>', or leave hops out."
            )
        return found
    text = "".join(pieces)
    place = text.find(end) + len(end)
    ends = list(accumulate(map(len, pieces)))
    found = next((i + 1 for i, last in enumerate(ends) if last >= place), len(pieces))
    if end not in text or found >= len(pieces):
        raise InputError(
            f"{end!r} ends the reasoning, but {'nothing is after it in' if end in text else 'it is not in'} the answer "
            f"{text[:80]!r}. Raise max_new_tokens, or leave reasoning out."
        )
    return found


def _check_model(model: Any, tokenizer: Any) -> None:  # noqa: ANN401
    head = getattr(model, "get_output_embeddings", None)
    if not callable(getattr(model, "generate", None)) or head is None or head() is None:
        raise InputError(
            f"{type(model).__name__} has no language-model head, so it generates nothing. Load it with "
            "AutoModelForCausalLM."
        )
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise InputError(
            f"{type(model).__name__} reads its prompt with an encoder, and generate is for causal models. Explain its "
            "answer with vitrail.answer(model, {'input_ids': ..., 'decoder_input_ids': ...}, start)."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("generate needs the model's fast tokenizer, which says where each token stands in the text.")
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model has embeddings for {rows}. Is it the model's "
            "own?"
        )
