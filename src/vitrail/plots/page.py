"""HTML from templates: an attribution, or the answer of a language model, in one file without requests to any host.

Every page is a Jinja2 template that lies beside the code that fills it. Templates escape every text: a token may say
`<script>`. What is HTML already is `Markup`.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from vitrail.attribution import Attribution
from vitrail.models.texts import is_blank
from vitrail.plots.canvas import DPI, bar_ticks, check_index, ink, new_figure, rendered, shade
from vitrail.plots.figures import comparison_sheet, stream_label
from vitrail.plots.pictures import overlay
from vitrail.plots.signals import is_signal, signal_figure
from vitrail.plots.tokens import Piece, join_runs, pieces

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""For browsers: pictures inside the page and its own styles, but no request, no frame, no script of anyone else's."""
KINDS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
"""How a file of each kind begins."""


def render(template: str, **values: Any) -> Markup:  # noqa: ANN401
    """A template, by its path inside the package such as `plots/templates/document.html`, filled."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> "Environment":
    """Return the Jinja2 environment: where templates are and how they are filled; imported with the first page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("vitrail", "")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
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
    hashes = [b64encode(sha256(one.encode()).digest()).decode() for one in (script, inside) if one]
    known = " ".join(f"'sha256-{one}'" for one in hashes)
    policy = f"{POLICY}; script-src {known}" if known else POLICY
    page = render("plots/templates/document.html", title=title, body=body, style=style, script=script, policy=policy)
    return str(page)


def data_url(data: bytes) -> str:
    """The bytes of a PNG, JPEG or WebP file as an address."""
    kind = next(kind for start, kind in KINDS.items() if data.startswith(start))
    return f"data:{kind};base64,{b64encode(data).decode()}"


def to_html(attribution: Attribution, image: Any = None, *, index: int | None = None, merge: bool = False) -> str:  # noqa: ANN401
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
    """Return the output of `to_html`, to be put into a template."""
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
    picture = data_url(rendered(comparison_sheet([list(attributions)]), dpi=DPI))
    return str(Markup('<img alt="{}" src="{}" style="max-width:100%">').format(alt, picture))


def to_page(
    attribution: Attribution,
    image: Any = None,  # noqa: ANN401
    *,
    index: int | None = None,
    merge: bool = False,
) -> str:
    """A whole HTML document of the attribution, see `to_html`."""
    title = f"{attribution.label}: {attribution.titles if index is None else attribution.title(index, probable=False)}"
    return document(title, attribution_block(attribution, image, index=index, merge=merge))


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
    if attribution.kind == "text" and not is_signal(attribution):
        found = join_runs(pieces(attribution, index, merge=merge))
        largest = max((abs(piece.value) for piece in found if not piece.left_out), default=0.0)
        signed = any(piece.signed for piece in found)
        ends = [(end, word) for end, word in bar_ticks("", largest, signed=signed) if end]
        scale = [(_shaded(end, signed=signed), word) for end, word in ends]
        return ShownSample(target, stream, pieces=found, scale=scale)
    draw, what, width = (signal_figure, "", 44) if is_signal(attribution) else (overlay, "Map of ", 24)
    data = rendered(draw(attribution, image, index=index, title=""), dpi=DPI)
    alt = f"{what}{attribution.label} for {target}, sample {index}"
    return ShownSample(target, stream, data, alt, f"width:{width}em;max-width:100%")


def _colours(piece: Piece) -> str:
    """The colours of a token in CSS."""
    return "color:#8a8a8a" if piece.left_out else _shaded(piece.score, signed=piece.signed)


def _shaded(score: float, *, signed: bool) -> str:
    colour = shade(score, signed=signed)
    return f"background:{colour};color:{ink(colour)}"


STRONGEST = 0.65
"""The opacity of the largest score: the text on it keeps a contrast of 4.8 to 1, by day and by night."""
ANSWER_STYLE = """:root{color-scheme:light dark}body{background:#fff}
@media screen and (prefers-color-scheme:dark){body{background:#181818}
main .vt-answer{--page:#181818;--ink:#ececec;--grey:#b4afa9;--line:#454545;--ring:#8ab4f8}}"""
"""Of a page of its own. Inside another document, such as a notebook, an answer stays light."""
WIRE = "\n" + files("vitrail.plots").joinpath("static", "answer.js").read_text("utf-8")
"""What shows the sources of the part of an answer that is pointed at."""
PAGE_SCRIPT = f"{WIRE}document.querySelectorAll('.vt-answer').forEach(vitrailAnswer);"
"""For pages that hold answers: `document(..., script=PAGE_SCRIPT)`."""
FRAGMENT_SCRIPT = f"(function(){{{WIRE}vitrailAnswer(document.currentScript.closest('.vt-answer'));}})();"


def answer_html(found: Any, *, fragment: bool = False) -> str:  # noqa: ANN401
    """The page of a `vitrail.tools.generations.Generation`, without anything from outside; a fragment for notebooks."""
    body = answer_body(found, script=FRAGMENT_SCRIPT)
    if fragment:
        return str(body)
    main = Markup("<main>{}</main>").format(body)
    return document("Explained answer", main, style=ANSWER_STYLE, inside=FRAGMENT_SCRIPT)


def answer_body(found: Any, *, script: str = "") -> Markup:  # noqa: ANN401
    """The answer, its passages and its context, the first part shown where no script runs; `script` comes last."""
    rows = _rows(found)
    between = " ({0.low:.0%} to {0.high:.0%})" if len(found.tables) > 1 else ""
    said = "{0.score:.0%}" + between + ", {0.passage.source}: {1}"
    cited = [[said.format(one, one.passage.text.strip()) for one in row] for row in found.cite(3)]
    method, sink = next(iter(found.sinks.items()))
    return render(
        "plots/templates/answer.html",
        # A button has something to read also where a part is white space, or the first bytes of a letter.
        units=["·" if is_blank(unit.text) else unit.text for unit in found.units],
        context=list(zip(found.tokens[: found.units[0].start], rows[0], strict=True)),
        data={"rows": rows, "cited": cited, "strongest": STRONGEST},
        method=method,
        sink=f"{float(sink.mean()):.0%}",
        share=float(found.template_share().mean()),
        script=script,
    )


def _rows(found: Any) -> list[list[float]]:  # noqa: ANN401
    """The scores of the context for each part of the answer, the largest one or minus one.

    What the chat template wrote is not shaded: its first token often holds more than all passages.
    """
    table = next(iter(found.tables.values()))[:, : found.units[0].start].clone()
    for one in found.context:
        if one.source == "template" and any(other.source != "template" for other in found.context):
            table[:, one.start : one.stop] = 0.0
    largest = table.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
    return [[round(float(x), 4) for x in row] for row in table / largest]


def answer_figure(found: Any) -> "Figure":  # noqa: ANN401
    """The shares of the passages in each part of the answer."""
    shares = found.shares().mean(dim=0).numpy()
    height, width = 1.2 + 0.35 * shares.shape[0], 2.5 + 0.45 * shares.shape[1]
    figure = new_figure(min(width, 16), min(height, 12))
    axes = figure.add_subplot()
    axes.imshow(shares, aspect="auto", cmap="Reds", vmin=0)
    axes.set_xticks(range(shares.shape[1]), [_short(one.text) for one in found.context], rotation=60, ha="right")
    axes.set_yticks(range(shares.shape[0]), [_short(one.text) for one in found.units])
    axes.set_xlabel("context")
    axes.set_ylabel("answer")
    return figure


def _short(text: str, letters: int = 28) -> str:
    words = " ".join(text.split())
    return words if len(words) <= letters else f"{words[: letters - 1]}…"
