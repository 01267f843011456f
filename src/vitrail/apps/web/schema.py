"""The fields that every route takes, as types. A request that does not fit is refused with the field and the reason."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vitrail.apps.web.limits import MalformedError

Name = Annotated[str, Field(min_length=1, max_length=200)]
Number = Annotated[int, Field(ge=0, le=2**31)]
Preset = Annotated[str, Field(pattern="^(recommended|paper|official)$")]
MOST_CELLS, MOST_TOKENS = 4096, 64


class Strict(BaseModel):
    """No conversion between types, and no field that is not named."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Text(Strict):
    """A text to keep as an input."""

    text: str = Field(max_length=100_000)


class Cancel(Strict):
    """End a request of the same session."""

    id: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")]


class Ask(Cancel):
    """What all questions say: which request this is, about which input, model and class.

    Args:
        id: chosen by the page; every event of the answer carries it.
        input: what `inputs` gave, or `example:NAME`.
        target: a class, or None for the one the model finds most probable.
    """

    input: Name
    model: Name
    target: Number | None = None


class ExplainAsk(Ask):
    """Maps of several methods."""

    methods: tuple[Name, ...] = Field(min_length=1, max_length=64)
    preset: Preset = "recommended"


class MethodAsk(Ask):
    """One method: its layers and heads."""

    method: Name
    preset: Preset = "recommended"


class RemoveAsk(MethodAsk):
    """The probability while parts are removed in the order of one map."""

    fill: Name = "auto"


class CompareAsk(ExplainAsk):
    """The agreement of the maps, and how much faster than in random order the probability falls."""

    fill: Name = "auto"


class WhatIfAsk(Ask):
    """The probabilities without some patches or tokens."""

    cells: tuple[Number, ...] = Field(max_length=MOST_CELLS)
    fill: Name = "auto"


class ContrastAsk(Ask):
    """The map of evidence for one class against another."""

    other: Number


class AttentionAsk(Ask):
    """Attention of every layer and head from one token; None is the token the answer is read from."""

    token: Number | None = None


class AnswerAsk(Ask):
    """What a language model writes after the text, or about a picture, and what each word rests on.

    Args:
        question: about the picture; a text is its own.
    """

    length: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = 16
    question: str = Field(default="", max_length=10_000)


class ClassesAsk(Ask):
    """Classes whose name holds these words, with their probabilities for the input."""

    words: str = Field(default="", max_length=200)


class DownloadAsk(ExplainAsk):
    """All maps as a file, in the colours of the page."""

    form: Name
    palette: Name = "Inferno"


def parse(schema: type[Strict], body: bytes) -> Strict:
    """The request as its type, or an error that names the field."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise MalformedError(f"{where}: {first['msg']}. See docs/app.md for what this route takes.") from None


ASKS: dict[str, type[Ask]] = {
    "explain": ExplainAsk,
    "remove": RemoveAsk,
    "fills": MethodAsk,
    "whatif": WhatIfAsk,
    "contrast": ContrastAsk,
    "layers": MethodAsk,
    "attention": AttentionAsk,
    "answer": AnswerAsk,
    "compare": CompareAsk,
    "classes": ClassesAsk,
    "download": DownloadAsk,
}
"""The routes that compute, and what each takes."""
