"""What is on the page as a file: a figure in the page's colours, a page that needs no server, or the numbers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vitrail.apps.web.explaining import Case
from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.plots.canvas import Ends, rendered
from vitrail.plots.page import origin
from vitrail.plots.pictures import Panel, as_picture, panel_figure, sample_map
from vitrail.plots.tokens import SentenceRow, pieces, sentence_figure
from vitrail.storage import WRITERS, json_text

PALETTES = {
    "Inferno": ("inferno", "RdBu_r"),
    "Viridis": ("viridis", "PuOr_r"),
    "Cividis": ("cividis", "BrBG_r"),
    "Grey": ("gray", "RdBu_r"),
}
"""Matplotlib's names of the page's colours: for maps without and with a sign. Warm always means for the answer."""


def _ends(palette: str) -> Ends:
    """The colours of the strongest words, as the page has them."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    sequential, diverging = (colormaps[name] for name in PALETTES[palette])
    return Ends(to_hex(diverging(0.93)), to_hex(diverging(0.07)), to_hex(sequential(0.72)))


def figure(form: str, case: Case, target: int, found: Sequence[Attribution], palette: str) -> bytes:
    """All maps side by side as PNG, SVG or PDF."""
    if palette not in PALETTES:
        raise OptionError(f"there are no colours {palette!r}. {suggest(palette, PALETTES)}")
    name = case.name(target)
    if case.kind == "text":
        rows = [SentenceRow(one.label, [replace(piece, ends=_ends(palette)) for piece in pieces(one)]) for one in found]
        sheet = sentence_figure([(name, rows)])
    else:
        picture = as_picture(case.sample.picture)
        maps = [
            Panel(one.label, sample_map(one, 0, picture), signed=one.signed, cmap=PALETTES[palette][one.signed])
            for one in found
        ]
        sheet = panel_figure([[Panel("input", picture=picture), *maps]], picture, heading=name)
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
    from vitrail.apps.web.standalone import case_page  # standalone reads the payload of this module's callers

    return case_page(case, target, found, palette).encode()


Make = Callable[[str, Case, int, Sequence[Attribution], str], bytes]
FORMS: dict[str, tuple[str, Make]] = {
    "png": ("image/png", figure),
    "svg": ("image/svg+xml", figure),
    "pdf": ("application/pdf", figure),
    "html": ("text/html", page),
    "json": ("application/json", numbers),
}


def file_of(form: str, case: Case, target: int, found: Sequence[Any], palette: str) -> tuple[str, bytes]:
    """The type and the bytes of a file; maps that failed are left out."""
    drawn = [one for one in found if isinstance(one, Attribution)]
    if not drawn:
        raise OptionError("there is no map to download: choose another method.")
    kind, make = FORMS[form]
    return kind, make(form, case, target, drawn, palette)


def check_form(form: str) -> None:
    """Refuse a form that does not exist."""
    if form not in FORMS:
        raise OptionError(f"there is no form {form!r}. {suggest(form, FORMS)}")
