"""An attribution as HTML in one file without requests to any host.

Every text is escaped: a token may say `<script>`.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from typing import Any

from vitrail.attribution import Attribution
from vitrail.plots.canvas import check_index, ink, rendered, shade
from vitrail.plots.figures import comparison_sheet
from vitrail.plots.pictures import overlay
from vitrail.plots.signals import is_signal, signal_figure
from vitrail.plots.tokens import Piece, pieces

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""For browsers: pictures inside the page and its own styles, but no request, no frame, no script of anyone else's."""
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>{style}</head>
<body style="margin:0{paper}">
{body}
</body>
</html>
"""
KINDS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
"""How a file of each kind begins."""


def document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """The document.

    Args:
        title: plain text; it is escaped here.
        body: HTML, escaped by whoever wrote it.
        style: a style sheet, which says what is behind the body; without one it is white.
        script: the only script that may run; the page names its hash, so that one in the body would be refused.
    """
    allowed = f"; {script_source(script)}" if script else ""
    return PAGE.format(
        policy=POLICY + allowed,
        title=escape(title),
        style=f"<style>{style}</style>" if style else "",
        paper="" if style else ";background:#fff",
        body=f"{body}\n<script>{script}</script>" if script else body,
    )


def script_source(script: str) -> str:
    """The part of a page's policy that lets this script run, and no other."""
    return f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def embedded(data: bytes, alt: str, *, look: str = "") -> str:
    """An `img` with the picture inside.

    Args:
        data: of a PNG, JPEG or WebP file.
        alt: plain text for those who do not see it.
        look: CSS.
    """
    kind = next(kind for start, kind in KINDS.items() if data.startswith(start))
    style = f' style="{look}"' if look else ""
    return f'<img alt="{escape(alt)}" src="data:{kind};base64,{b64encode(data).decode()}"{style}>'


BOX = "background:#fff;color:#1c1c1c;font-family:system-ui,sans-serif;max-width:56em;padding:.8em 1em"
SMALL = "color:#6b6b6b;font-size:.85em;margin:.2em 0"
TOKEN = "padding:.1em .18em;border-radius:.2em"


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
    chosen = range(len(attribution)) if index is None else [check_index(attribution, index)]
    samples = "\n".join(_sample(attribution, image, i, merge=merge) for i in chosen)
    return (
        f'<section style="{BOX}">\n'
        f'<p style="margin:.2em 0"><strong>{escape(attribution.label)}</strong></p>\n'
        f'{samples}\n<p style="{SMALL}">{escape(origin(attribution))}</p>\n</section>'
    )


def comparison_html(attributions: Sequence[Attribution]) -> str:
    """A block of HTML with the first sample explained by every method side by side."""
    if not attributions:
        return "<p>no attribution</p>"
    alt = f"{', '.join(a.label for a in attributions)} for {attributions[0].title()}"
    return embedded(rendered(comparison_sheet([list(attributions)])), alt, look="max-width:100%")


def to_page(attribution: Attribution, *, index: int | None = None) -> str:
    """A whole HTML document of the attribution."""
    title = f"{attribution.label}: {attribution.target}"
    return document(title, to_html(attribution, index=index))


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


def _sample(attribution: Attribution, image: Any, index: int, *, merge: bool) -> str:  # noqa: ANN401
    """One sample; where a model has several streams, each of them under its name."""
    if not attribution.streams:
        return _own_sample(attribution, image, index, merge=merge)
    return "\n".join(
        f'<p style="margin:.6em 0 0"><strong>{escape(name)}</strong></p>\n'
        + _own_sample(one, image, index, merge=merge)
        for name, one in attribution.streams.items()
    )


def _own_sample(attribution: Attribution, image: Any, index: int, *, merge: bool) -> str:  # noqa: ANN401
    target = escape(attribution.title(index))
    if is_signal(attribution):
        data = rendered(signal_figure(attribution, image, index=index, title=""))
        alt = f"{attribution.label} for {attribution.title(index)}, sample {index}"
        return f'<p style="{SMALL}">{target}</p>\n{embedded(data, alt, look="width:44em;max-width:100%")}'
    if attribution.kind == "text":
        found = pieces(attribution, index, merge=merge)
        words = "".join(("" if i == 0 or piece.glued else " ") + _token(piece) for i, piece in enumerate(found))
        return f'<p style="{SMALL}">{target}</p>\n<p style="line-height:1.9;margin:.2em 0">{words}</p>\n{_scale(found)}'
    data = rendered(overlay(attribution, image, index=index, title=""))
    alt = f"Map of {attribution.label} for {attribution.title(index)}, sample {index}"
    return f'<p style="{SMALL}">{target}</p>\n{embedded(data, alt, look="width:24em;max-width:100%")}'


def _scale(found: Sequence[Piece]) -> str:
    """What the darkest shades stand for."""
    largest = max((abs(piece.value) for piece in found if not piece.left_out), default=0.0)
    signed = any(piece.signed for piece in found)
    ends = ((-1.0, "against"), (1.0, "for")) if signed else ((1.0, "most"),)
    shades = [(shade(end, signed=signed), f"{word} {end * largest:.2g}") for end, word in ends]
    marks = " ".join(
        f'<strong style="background:{colour};color:{ink(colour)};font-weight:400;{TOKEN}">{text}</strong>'
        for colour, text in shades
    )
    return f'<p style="{SMALL}">{marks}</p>'


def _token(piece: Piece) -> str:
    note = "the prediction is read here; its own score is left out" if piece.left_out else f"{piece.value:+.4g}"
    colour = shade(piece.score, signed=piece.signed)
    look = f"color:#8a8a8a;{TOKEN}" if piece.left_out else f"background:{colour};color:{ink(colour)};{TOKEN}"
    return f'<span style="{look}" title="{escape(f"{piece.raw} {note}")}">{escape(piece.text)}</span>'
