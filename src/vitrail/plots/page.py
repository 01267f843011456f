"""HTML from templates, and an attribution as HTML in one file without requests to any host.

Every page is a Jinja2 template that lies beside the code that fills it. Templates escape every text: a token may say
`<script>`. What is HTML already is `Markup`.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from vitrail.attribution import Attribution
from vitrail.plots.canvas import check_index, ink, rendered, shade
from vitrail.plots.figures import comparison_sheet
from vitrail.plots.pictures import overlay
from vitrail.plots.signals import is_signal, signal_figure
from vitrail.plots.streams import stream_label
from vitrail.plots.tokens import Piece, join_runs, pieces

if TYPE_CHECKING:
    from jinja2 import Environment

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""For browsers: pictures inside the page and its own styles, but no request, no frame, no script of anyone else's."""
KINDS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
"""How a file of each kind begins."""


def render(template: str, **values: Any) -> Markup:  # noqa: ANN401
    """A template, filled.

    Args:
        template: its path inside the package, such as `plots/templates/document.html`.
    """
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> "Environment":
    """Where templates are found and how they are filled; Jinja2 is imported with the first page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("vitrail", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False}
    made.filters |= {"data_url": data_url, "colours": _colours}
    return made


def document(title: str, body: Markup, *, style: str = "", script: str = "", inside: str = "") -> str:
    """The document.

    Args:
        title: plain text.
        style: a style sheet, which sets the background; without one it is white.
        script: put at the end of the body.
        inside: the script that the body holds already. The page names the hashes of both; any other is refused.
    """
    known = " ".join(_hash(one) for one in (script, inside) if one)
    policy = f"{POLICY}; script-src {known}" if known else POLICY
    page = render("plots/templates/document.html", title=title, body=body, style=style, script=script, policy=policy)
    return str(page)


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def data_url(data: bytes) -> str:
    """The bytes of a PNG, JPEG or WebP file as an address."""
    kind = next(kind for start, kind in KINDS.items() if data.startswith(start))
    return f"data:{kind};base64,{b64encode(data).decode()}"


def to_html(
    attribution: Attribution,
    image: Any = None,  # noqa: ANN401
    *,
    index: int | None = None,
    merge: bool = False,
) -> str:
    """A block of HTML: sentences with shaded tokens, or embedded pictures, with how they were made.

    Args:
        image: what to draw maps over, see `as_picture`; None draws the map alone.
        index: one sample only.
        merge: join word pieces into words, see `merge_pieces`.
    """
    return str(attribution_block(attribution, image, index=index, merge=merge))


def attribution_block(
    attribution: Attribution,
    image: Any = None,  # noqa: ANN401
    *,
    index: int | None = None,
    merge: bool = False,
) -> Markup:
    """What `to_html` gives, to be put into a template."""
    chosen = range(len(attribution)) if index is None else [check_index(attribution, index)]
    streams = attribution.streams or {"": attribution}
    samples = (_sample(one, image, i, merge=merge, stream=name) for i in chosen for name, one in streams.items())
    label, made_with = stream_label(attribution), origin(attribution)
    return render("plots/templates/attribution.html", label=label, samples=samples, origin=made_with)


def comparison_html(attributions: Sequence[Attribution]) -> str:
    """A block of HTML with the first sample explained by every method side by side."""
    if not attributions:
        return "<p>no attribution</p>"
    alt = f"{', '.join(a.label for a in attributions)} for {attributions[0].title()}"
    picture = data_url(rendered(comparison_sheet([list(attributions)])))
    return str(Markup('<img alt="{}" src="{}" style="max-width:100%">').format(alt, picture))


def to_page(attribution: Attribution, *, index: int | None = None) -> str:
    """A whole HTML document of the attribution."""
    title = f"{attribution.label}: {attribution.target}"
    return document(title, attribution_block(attribution, index=index))


def origin(attribution: Attribution) -> str:
    """One line that says with which preset, options, model and libraries the scores were made."""
    known = attribution.provenance
    model = " ".join(str(known[name]) for name in ("model", "model_hash") if name in known)
    versions = known.get("versions", {})
    parts = [
        f"method {attribution.method}",
        f"preset {attribution.preset}",
        ", ".join(f"{name}={value}" for name, value in attribution.options.items()),
        f"model {model}" if model else "",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class ShownSample:
    """One stream of one sample, as the template shows it.

    Args:
        stream: its name where a model has several.
        picture: bytes of a file, with `alt` for those who do not see it and `look` in CSS; else `pieces` are shown.
        scale: what the strongest shades of the pieces stand for.
    """

    target: str
    stream: str = ""
    picture: bytes = b""
    alt: str = ""
    look: str = ""
    pieces: Sequence[Piece] = ()
    scale: Sequence[tuple[str, str]] = ()


def _sample(attribution: Attribution, image: Any, index: int, *, merge: bool, stream: str) -> ShownSample:  # noqa: ANN401
    target = attribution.title(index)
    if is_signal(attribution):
        data = rendered(signal_figure(attribution, image, index=index, title=""))
        alt = f"{attribution.label} for {target}, sample {index}"
        return ShownSample(target, stream, data, alt, "width:44em;max-width:100%")
    if attribution.kind == "text":
        found = join_runs(pieces(attribution, index, merge=merge))
        return ShownSample(target, stream, pieces=found, scale=list(_scale(found)))
    data = rendered(overlay(attribution, image, index=index, title=""))
    alt = f"Map of {attribution.label} for {target}, sample {index}"
    return ShownSample(target, stream, data, alt, "width:24em;max-width:100%")


def _scale(found: Sequence[Piece]) -> Iterator[tuple[str, str]]:
    """The darkest shades with their scores."""
    largest = max((abs(piece.value) for piece in found if not piece.left_out), default=0.0)
    signed = any(piece.signed for piece in found)
    for end, word in ((-1.0, "against"), (1.0, "for")) if signed else ((1.0, "most"),):
        yield _shaded(end, signed=signed), f"{word} {end * largest:.2g}"


def _colours(piece: Piece) -> str:
    """The colours of a token in CSS."""
    return "color:#8a8a8a" if piece.left_out else _shaded(piece.score, signed=piece.signed)


def _shaded(score: float, *, signed: bool) -> str:
    colour = shade(score, signed=signed)
    return f"background:{colour};color:{ink(colour)}"
