"""A page that needs no server: the same front end with results inside, for files and notebooks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitrail.apps.web import bundle
from vitrail.apps.web.explaining import Case
from vitrail.apps.web.inside import parts_json
from vitrail.apps.web.payload import case_json, map_json, token_json
from vitrail.apps.web.reading import data_url
from vitrail.apps.web.words import PLAIN
from vitrail.attribution import Attribution
from vitrail.plots.canvas import check_index, sample_target
from vitrail.plots.page import document, render
from vitrail.plots.pictures import as_picture
from vitrail.storage import write_bytes


def case_page(case: Case, target: int, found: Sequence[Attribution], palette: str) -> str:
    """The page with the maps of one input inside."""
    return page_of(case_json(case, target), found, palette=palette)


def attribution_page(attributions: Sequence[Attribution], image: Any = None, *, index: int = 0) -> str:  # noqa: ANN401
    """The page with one sample of attributions inside; the picture should show what the model saw."""
    from PIL import Image

    first = attributions[0]
    picture = None
    if image is not None:
        picture = Image.fromarray((as_picture(image, index) * 255).round().clip(0, 255).astype("uint8"))
    size = first.size if picture is None else (picture.height, picture.width)
    about = {
        "kind": first.kind,
        "model": str(first.provenance.get("model", "")),
        "target": {"index": -1, "name": str(sample_target(first, index)), "probability": None},
        "classes": [],
        "count": 0,
        "picture": None if picture is None else data_url(picture),
        "size": size,
    }
    return page_of(about, attributions, index=index)


@dataclass(frozen=True)
class Page:
    """A page that needs no server. Notebooks show it; `save` writes it as a file.

    Args:
        height: pixels of its frame in a notebook.
    """

    html: str = field(repr=False)
    height: int = 620

    def save(self, path: str | Path) -> Path:
        """Write the page as an HTML file."""
        return write_bytes(Path(path), self.html.encode())

    def _repr_html_(self) -> str:
        frame = 'style="width:100%;border:0" title="Vitrail" sandbox="allow-scripts"'
        return str(Markup('<iframe {} height="{}" srcdoc="{}"></iframe>').format(Markup(frame), self.height, self.html))


def explore(attributions: Sequence[Attribution], image: Any = None, *, index: int = 0) -> Page:  # noqa: ANN401
    """Attributions of the same inputs as one page."""
    check_index(attributions[0], index)
    return Page(attribution_page(attributions, image, index=index))


def page_of(about: dict[str, Any], found: Sequence[Attribution], *, palette: str = "Inferno", index: int = 0) -> str:
    """The document: front end, style and data in one file, with a policy that lets it fetch nothing."""
    data = {
        "case": {
            **about,
            "grid": found[0].grid,
            "tokens": token_json(found[0], index=index),
            "cautions": [],
            "card": None,
        },
        "maps": [map_json(one, index=index) for one in found],
        "parts": {
            one.label: parts_json(one, index=index) for one in found if one.layers is not None or one.heads is not None
        },
        "plain": {one.label: PLAIN.get(one.method, "") for one in found},
        "palette": palette,
    }
    body = render("apps/web/standalone.html", data=data)
    return document(f"Vitrail: {about['target']['name']}", body, style=bundle.style(), script=bundle.script())
