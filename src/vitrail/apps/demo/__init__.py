"""Explanations of the embedded models: two pictures, three sentences and an answer, without a download."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitrail import models, zoo
from vitrail.api import compare
from vitrail.attribution import Attribution
from vitrail.errors import OutputError
from vitrail.models import DEMO_SENTENCES as SENTENCES
from vitrail.models import QUESTION
from vitrail.models.prompts import read_prompt
from vitrail.plots import comparison_sheet
from vitrail.plots.canvas import rendered
from vitrail.plots.page import PAGE_SCRIPT, answer_body, attribution_block, document, render
from vitrail.plots.tokens import pieces
from vitrail.storage import write_bytes
from vitrail.tools.generations import Generation, generate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = {f"{name}.jpg": origin for name, origin in models.PICTURES.items()}
SHOWN = "consensus"
"""The method of the sentences on the terminal: the default of `explain`."""
ON_ANSWER = "sentence_drop"
"""The method of the answer: it removes one sentence at a time, so each share is a measured effect."""
ON_PICTURES = (
    "consensus",
    ("consensus", {"preset": "fine"}),
    "gae",
    "tokentm",
    ("gradtoken", {"scheme": "average_elementwise"}),
    "complete_gradient",
    "rollout",
    "grad_cam",
)
ON_SENTENCES = (
    "consensus",
    "raw_attention",
    "rollout",
    "grad_cam",
    "gae",
    "complete_gradient",
    "tokentm",
    "gradtoken",
    "attcat",
)


@dataclass(frozen=True)
class Explained:
    """One input with what the model said of it, and every method's attribution."""

    title: str
    attributions: list[Attribution]


@dataclass(frozen=True)
class Made:
    """The results of the demo, and the files it wrote."""

    pictures: list[Explained]
    sentences: list[Explained]
    answer: Generation
    paths: tuple[Path, ...]


def run(folder: Path) -> Made:
    """Explain pictures, sentences and an answer, and write two sheets, the photographs and one page."""
    try:
        (folder / "photos").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error.strerror}. Choose another folder with -o.") from error
    images, pictures = _pictures()
    sentiment, lookup = zoo.load_plain("sentiment"), zoo.load("lookup")
    sentences = [_explained(sentiment, sentiment.preprocess([text]), ON_SENTENCES) for text in SENTENCES]
    answer = explain_answer(lookup.model, lookup.preprocess.tokenizer)  # pyright: ignore[reportFunctionMemberAccess]
    sheets = {"pictures.png": rendered(_sheet(pictures, images)), "sentences.png": rendered(_sheet(sentences, None))}
    page = _page(sheets, pictures, sentences, answer).encode()
    photos = {f"photos/{name}": zoo.example(Path(name).stem).read_bytes() for name in PICTURES}
    files = {**sheets, **photos, "index.html": page}
    return Made(pictures, sentences, answer, tuple(write_bytes(folder / name, data) for name, data in files.items()))


def explain_answer(model: Any, tokenizer: Any) -> Generation:  # noqa: ANN401
    """Answer the question, and explain the answer by the sentences before it; the question itself is not removed."""
    *statements, _ = read_prompt(tokenizer, QUESTION, None).passages
    sources = [(one.start, one.stop) for one in statements]
    return generate(model, tokenizer, QUESTION, method=ON_ANSWER, options={"sources": sources})


def _pictures() -> tuple[list[torch.Tensor], list[Explained]]:
    from PIL import Image

    photo = zoo.load_plain("photo")
    images, found = [], []
    for name in PICTURES:
        with Image.open(zoo.example(Path(name).stem)) as picture:
            inputs = photo.preprocess(picture)
        images.append(inputs[0] / 2 + 0.5)
        found.append(_explained(photo, inputs, ON_PICTURES))
    return images, found


def _explained(loaded: zoo.Embedded, inputs: Any, methods: Sequence[Any]) -> Explained:  # noqa: ANN401
    """The predicted class with its probability, and every method's attribution."""
    with torch.no_grad():
        logits = (loaded.model(inputs) if isinstance(inputs, torch.Tensor) else loaded.model(**inputs)).logits
    probability, index = logits[0].softmax(dim=0).max(dim=0)
    title = f"{loaded.class_names[int(index)]}, {float(probability):.1%}"
    return Explained(title, list(compare(loaded.model, inputs, methods)))


def numbered(attribution: Attribution) -> str:
    """The words of the first sentence, each with its score, for where there are no colours."""
    return " ".join(f"{piece.text} {piece.value:+.2f}" for piece in pieces(attribution, merge=True))


def _sheet(explained: list[Explained], images: list[torch.Tensor] | None) -> "Figure":
    return comparison_sheet([e.attributions for e in explained], images, row_titles=[e.title for e in explained])


def _page(sheets: dict[str, bytes], pictures: list[Explained], sentences: list[Explained], answer: Generation) -> str:
    """One page that needs nothing beside it."""
    drawn = []
    for (name, data), explained in zip(sheets.items(), (pictures, sentences), strict=True):
        methods = ", ".join(a.label for a in explained[0].attributions)
        drawn.append((data, f"{name}: {methods} for {'; '.join(e.title for e in explained)}"))
    shown = [(e.title, [attribution_block(a, merge=True) for a in e.attributions if a.signed]) for e in sentences]
    values = {"sources": " ".join(PICTURES.values()), "sheets": drawn, "sentences": shown}
    body = render("apps/demo/demo.html", answer=answer_body(answer), **values)
    return document("Vitrail demo", body, script=PAGE_SCRIPT)
