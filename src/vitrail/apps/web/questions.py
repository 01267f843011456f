"""Answers on the page: what a model answers, and what each word of the answer rests on.

A vision-language model answers a question about a picture once. Each word is then explained over the patches of the
picture and over the tokens of the question. A language model's answer is explained over the text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor

import vitrail
from vitrail import targets
from vitrail.apps.web import workers
from vitrail.apps.web.explaining import Case, Explorer, Steps, data_url, picture_of, read_text
from vitrail.apps.web.guard import AnswerAsk
from vitrail.apps.web.model_cache import OpenModel, running
from vitrail.apps.web.payload import model_card, packed
from vitrail.apps.web.sessions import Input
from vitrail.apps.web.workers import Job
from vitrail.errors import InputError, OptionError
from vitrail.models.inputs import position_limit
from vitrail.models.loading import Loaded, Sample
from vitrail.models.loading.huggingface import answer_text, answer_words
from vitrail.models.prompts import decoded
from vitrail.models.texts import Span
from vitrail.tools.generations import Generation

METHOD = "gae"
"""It walks over the tokens of picture and text alike."""
SHOWN = 768
"""Pixels of the longer side of the picture on the page."""


@dataclass(frozen=True, eq=False)
class Rests:
    """The scores that one word rests on: of the question's shown tokens, and of the patches where they have places."""

    text: Float[Tensor, " t"]
    patches: Float[Tensor, " p"] | None
    grid: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Answered:
    """An answer with its words, the tokens of the question, the picture as the model saw it, and what is known so far.

    `columns` are those of the tokens that are shown; those that stand for patches are left out.
    """

    text: str
    units: tuple[tuple[str, Span], ...]
    sample: Sample
    picture: str
    size: tuple[int, int]
    columns: tuple[int, ...]
    prompt: tuple[str, ...]
    rests: tuple[Rests, ...] = ()

    @property
    def nbytes(self) -> int:
        """The memory it takes, in bytes."""
        inputs: Any = self.sample.inputs
        held = [x for x in inputs.values() if isinstance(x, Tensor)]
        held += [x for one in self.rests for x in (one.text, one.patches) if x is not None]
        return len(self.picture) + sum(x.nbytes for x in held)


def shown(explorer: Explorer, given: Input, opened: OpenModel) -> Steps:
    """The picture before anything is asked: there are no classes and no maps."""
    yield workers.DECODE
    picture = picture_of(given, explorer.limits)
    picture.thumbnail((SHOWN, SHOWN))
    kind = type(opened.loaded.model).__name__
    yield {
        "case": {
            "kind": "image",
            "task": "asking",
            "model": opened.loaded.name,
            "target": {"index": 0, "name": "", "probability": 0.0},
            "classes": [],
            "count": 0,
            "picture": data_url(picture),
            "size": [picture.height, picture.width],
            "card": {**model_card(opened.loaded), "what": f"{kind}. It answers questions on pictures."},
            "cautions": [],
            "tokens": None,
            "grid": [1, 1],
        }
    }
    yield {"done": True}


def answered(explorer: Explorer, given: Input, opened: OpenModel, ask: AnswerAsk, job: Job) -> Steps:
    """The answer, then what each word of it rests on as it becomes known."""
    if not ask.question.strip():
        raise OptionError("there is no question: write one about the picture.")
    question = read_text(ask.question, explorer.limits)
    key = ("question", given.key, ask.model, question, ask.length)
    found: Answered | None = explorer.results.get(key)
    if found is None:
        yield workers.DECODE
        picture = picture_of(given, explorer.limits)
        yield workers.SLOW
        with running(opened, job, "writing the answer"):
            found = _written(opened.loaded, picture, question, ask.length)
    yield {
        "text": found.text,
        "method": METHOD,
        "units": [{"text": text} for text, _ in found.units],
        "prompt": list(found.prompt),
        "picture": found.picture,
        "size": found.size,
    }
    rests = list(found.rests)
    for number, (text, span) in enumerate(found.units):
        if number == len(rests):
            yield workers.SLOW
            with running(opened, job, f"explaining {text}"):
                rests.append(_rests(opened.loaded, found, span))
        one = rests[number]
        patches = None if one.patches is None else packed(one.patches)
        yield {"word": number, "scores": packed(one.text), "patches": patches, "grid": one.grid}
    explorer.results.put(key, replace(found, rests=tuple(rests)))
    yield {"done": True}


def _written(loaded: Loaded, picture: Any, question: str, length: int) -> Answered:  # noqa: ANN401
    """Return the answer that the model writes about the picture."""
    assert loaded.write is not None
    sample = loaded.write(picture, question, length=length)
    units = answer_words(loaded, sample)
    if not units:
        raise InputError(f"{loaded.name} wrote no word. Ask it something else.")
    seen = sample.picture or picture
    seen.thumbnail((SHOWN, SHOWN))
    inputs: Any = sample.inputs
    ids = inputs["input_ids"][0, : sample.start].tolist()
    names = ("image_token_id", "image_token_index")  # of the tokens that stand for patches of the picture
    patches = [getattr(loaded.model.config, name, None) for name in names]
    columns = [place for place, one in enumerate(ids) if one not in patches]
    prompt = decoded(loaded.tokenizer, [ids[place] for place in columns])
    size = (seen.height, seen.width)
    return Answered(answer_text(loaded, sample), tuple(units), sample, data_url(seen), size, tuple(columns), prompt)


def _rests(loaded: Loaded, found: Answered, span: Span) -> Rests:
    """Return the scores that the word in these columns rests on."""
    target = targets.continuation(*span)
    streams = vitrail.explain(loaded.model, found.sample.inputs, METHOD, target).streams
    if "text" not in streams:
        raise OptionError(f"{loaded.name} has no stream of text tokens, so its answers cannot be shown here.")
    text = streams["text"].shown[0, list(found.columns)].detach().float().cpu()
    image = streams.get("image")
    if image is None or image.grid is None:
        return Rests(text, None, None)
    return Rests(text, image.shown[0].detach().float().cpu(), image.grid)


CITED = 3
"""Passages that are named for each word of the answer."""


def answer_of(explorer: Explorer, case: Case, prompt: str, length: int, job: Job) -> Generation:
    """The model's answer to the text with its sources, made once for each length; shorter where the model ends."""
    loaded = case.opened.loaded
    if loaded.task != "causal":
        raise OptionError(f"{loaded.name} writes no text, so it has no answer. Choose a language model.")
    key = ("answer", case.key, length)
    if (found := explorer.results.get(key)) is not None:
        return found
    twin, inputs = case.opened.twin, cast(Mapping[str, Tensor], case.sample.inputs)
    limit = position_limit(twin.loaded.model)
    room = length if limit is None else min(length, max(1, limit - inputs["input_ids"].shape[1]))
    with running(twin, job, "writing the answer"):
        made = vitrail.generate(twin.loaded.model, loaded.tokenizer, prompt, unit="word", max_new_tokens=room)
    return explorer.results.put(key, made)


def answer_json(found: Generation) -> dict[str, Any]:
    """The answer's words, the tokens of the text, and a row of scores over them for each word."""
    method, table = next(iter(found.tables.items()))
    first = found.units[0].start
    cited = [[one for one in row if one.score > 0] for row in found.cite(CITED)]
    return {
        "text": found.text,
        "method": method,
        "prompt": list(found.tokens[:first]),
        "units": [{"text": one.text.strip()} for one in found.units],
        "scores": packed(table[:, :first].float()),
        "earlier": [_earlier(row, first) for row in table],
        "sink": [float(share) for share in found.sinks[method]],
        "cited": [
            [{"source": one.passage.source, "text": one.passage.text.strip(), "share": one.score} for one in row]
            for row in cited
        ],
    }


def _earlier(row: Float[Tensor, " n"], first: int) -> float:
    """The share of a word's positive scores that lies on the answer itself, on words before it."""
    positive = row.clamp(min=0)
    total = float(positive.sum())
    return float(positive[first:].sum()) / total if total else 0.0
