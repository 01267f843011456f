"""Files of results: a page that needs no server, with the same front end, and pictures and numbers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitrail.apps.web import bundle
from vitrail.apps.web.explaining import Case, data_url
from vitrail.apps.web.payload import PLAIN, case_json, map_json, parts_json, token_json
from vitrail.attribution import Attribution
from vitrail.errors import OptionError, as_path, suggest
from vitrail.plots.canvas import Ends, check_index, rendered
from vitrail.plots.page import document, origin, render
from vitrail.plots.pictures import Panel, as_picture, panel_figure, region_of, sample_map
from vitrail.plots.tokens import SentenceRow, pieces, sentence_figure
from vitrail.storage import WRITERS, json_text, write_bytes


@dataclass(frozen=True)
class Page:
    """A page that needs no server. Notebooks show it in a frame of this height; `save` writes it as a file."""

    html: str = field(repr=False)
    height: int = 620

    def save(self, path: str | Path) -> Path:
        """Write the page as an HTML file."""
        return write_bytes(as_path(path, "a page"), self.html.encode(errors="backslashreplace"))

    def _repr_html_(self) -> str:
        frame = 'style="width:100%;border:0" title="Vitrail" sandbox="allow-scripts"'
        return str(Markup('<iframe {} height="{}" srcdoc="{}"></iframe>').format(Markup(frame), self.height, self.html))


def explore(attributions: Sequence[Attribution], image: Any = None, *, index: int = 0) -> Page:  # noqa: ANN401
    """One sample of attributions of the same inputs as a page; of a photograph, the part that the model saw."""
    from PIL import Image

    first = attributions[0]
    check_index(first, index)
    picture = None
    if image is not None:
        picture = Image.fromarray((as_picture(image, index) * 255).round().clip(0, 255).astype("uint8"))
        if (region := region_of(first, image, index)) is not None:  # the page lays maps over all of its picture
            left, top, right, bottom = map(round, region)
            picture = picture.crop((left, top, right, bottom))
    about = {
        "kind": first.kind,
        "model": str(first.provenance.get("model", "")),
        "target": {"index": -1, "name": first.title(index, probable=False), "probability": None},
        "classes": [],
        "count": 0,
        "picture": None if picture is None else data_url(picture),
        "size": first.size if picture is None else (picture.height, picture.width),
    }
    return Page(page_of(about, attributions, index=index))


def page_of(about: dict[str, Any], found: Sequence[Attribution], *, palette: str = "Inferno", index: int = 0) -> str:
    """The document: front end, style and data in one file, with a policy that lets it fetch nothing."""
    tokens = token_json(found[0], index=index)
    parted = [one for one in found if one.layers is not None or one.heads is not None]
    data = {
        "case": {**about, "grid": found[0].grid, "tokens": tokens, "cautions": [], "card": None},
        "maps": [map_json(one, index=index) for one in found],
        "parts": {one.label: parts_json(one, index=index) for one in parted},
        "plain": {one.label: PLAIN.get(one.method, "") for one in found},
        "palette": palette,
    }
    body = render("apps/web/standalone.html", data=data)
    return document(f"Vitrail: {about['target']['name']}", body, style=bundle.style(), script=bundle.script())


PALETTES = {
    "Inferno": ("inferno", "RdBu_r"),
    "Viridis": ("viridis", "PuOr_r"),
    "Cividis": ("cividis", "BrBG_r"),
    "Grey": ("gray", "RdBu_r"),
}
"""Matplotlib's names of the page's colours: for maps without and with a sign. Warm always means for the answer."""


def figure(form: str, case: Case, target: int, found: Sequence[Attribution], palette: str) -> bytes:
    """All maps side by side as PNG, SVG or PDF."""
    if palette not in PALETTES:
        raise OptionError(f"there are no colours {palette!r}. {suggest(palette, PALETTES)}")
    name = case.name(target)
    if case.kind == "text":
        from matplotlib import colormaps
        from matplotlib.colors import to_hex

        sequential, diverging = (colormaps[name] for name in PALETTES[palette])
        ends = Ends(to_hex(diverging(0.93)), to_hex(diverging(0.07)), to_hex(sequential(0.72)))  # as the page has them
        rows = [SentenceRow(one.label, [replace(piece, ends=ends) for piece in pieces(one)]) for one in found]
        sheet = sentence_figure([(name, rows)])
    else:
        picture = as_picture(case.sample.picture)
        panels = [Panel("input", picture=picture)]
        for one in found:
            colours = PALETTES[palette][one.signed]
            panels.append(Panel(one.label, sample_map(one, 0, picture), signed=one.signed, cmap=colours))
        sheet = panel_figure([panels], picture, heading=name)
    about = {"Title": f"{name}: {', '.join(one.label for one in found)}"}
    if form == "png":
        about["Source"] = origin(found[0])
    return rendered(sheet, form, metadata=about)


def numbers(form: str, case: Case, target: int, found: Sequence[Attribution], palette: str) -> bytes:
    """One attribution as `Attribution.load` reads it, several as a list of such."""
    each = [WRITERS[".json"](one) for one in found]
    return each[0] if len(each) == 1 else json_text([json.loads(one) for one in each]).encode()


def page(form: str, case: Case, target: int, found: Sequence[Attribution], palette: str) -> bytes:
    """The page itself with these maps inside, for any browser, without a server."""
    return page_of(case_json(case, target), found, palette=palette).encode()


FORMS: dict[str, tuple[str, Callable[[str, Case, int, Sequence[Attribution], str], bytes]]] = {
    "png": ("image/png", figure),
    "svg": ("image/svg+xml", figure),
    "pdf": ("application/pdf", figure),
    "html": ("text/html", page),
    "json": ("application/json", numbers),
}
"""The type of each file, and what makes it of all maps."""
