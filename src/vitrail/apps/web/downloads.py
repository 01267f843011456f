"""What is on the page as a file to keep: a picture, a page or the numbers, each with how it was made."""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape

from vitrail.apps.web.rooms import Case
from vitrail.attribution import Attribution
from vitrail.errors import OptionError, suggest
from vitrail.jsonable import json_text
from vitrail.plots import comparison_sheet
from vitrail.plots.canvas import rendered
from vitrail.plots.document import document
from vitrail.plots.page import origin, to_html
from vitrail.storage import WRITERS

_drawing = threading.Lock()
"""matplotlib's fonts are shared by all threads."""


def _sheet(form: str, case: Case, target: int, found: Sequence[Attribution]) -> bytes:
    about = {"Title": f"{case.name(target)}: {', '.join(one.label for one in found)}", "Runner": origin(found[0])}
    with _drawing:
        sheet = comparison_sheet([list(found)], case.sample.picture, row_titles=[case.name(target)])
        return rendered(sheet, form, metadata=about)


def _png(case: Case, target: int, found: Sequence[Attribution]) -> bytes:
    return _sheet("png", case, target, found)


def _pdf(case: Case, target: int, found: Sequence[Attribution]) -> bytes:
    return _sheet("pdf", case, target, found)


def _html(case: Case, target: int, found: Sequence[Attribution]) -> bytes:
    name = case.name(target)
    with _drawing:
        blocks = [to_html(one, case.sample.picture, index=0) for one in found]
    return document(name, "\n".join([f"<h1>{escape(name)}</h1>", *blocks])).encode()


def _json(case: Case, target: int, found: Sequence[Attribution]) -> bytes:
    """One attribution as `Attribution.load` reads it, several as a list of such."""
    each = [WRITERS[".json"](one) for one in found]
    return each[0] if len(each) == 1 else json_text([json.loads(one) for one in each]).encode()


FORMS: dict[str, tuple[str, Callable[[Case, int, Sequence[Attribution]], bytes]]] = {
    "png": ("image/png", _png),
    "pdf": ("application/pdf", _pdf),
    "html": ("text/html", _html),
    "json": ("application/json", _json),
}


def file_of(form: str, case: Case, target: int, found: Sequence[Attribution | str]) -> dict[str, str]:
    """A file's name and an address that holds all of it, so that nothing of a visitor's lies on the server's disk."""
    if form not in FORMS:
        raise OptionError(f"there is no form {form!r}. {suggest(form, FORMS)}")
    kind, make = FORMS[form]
    drawn = [one for one in found if isinstance(one, Attribution)]
    if not drawn:
        raise OptionError("there is no map to download: choose another way to explain.")
    data = b64encode(make(case, target, drawn)).decode()
    return {"name": f"vitrail.{form}", "url": f"data:{kind};base64,{data}"}
