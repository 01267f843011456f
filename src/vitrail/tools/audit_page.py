"""An audit as one HTML page that needs nothing beside it. Every name is escaped: a file may be called `<script>`."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

from vitrail.plots.document import document, image
from vitrail.plots.page import SMALL
from vitrail.tools.guides import RECOGNISED

if TYPE_CHECKING:
    from vitrail.tools.findings import Audit, Finding, Pair

MAIN = "font-family:system-ui,sans-serif;color:#1c1c1c;max-width:76em;margin:1em auto;padding:0 1.5em"
CARD = "display:inline-block;vertical-align:top;width:340px;margin:0 1em 1.6em 0"
CELL = "padding:.15em .9em .15em 0;text-align:left"
ABOUT = """The rival of a label is the most likely class beside it. <strong>Pictures</strong> are ranked by the
probability of the rival minus that of the label: 1 means the model is sure that the label is wrong, 0 that it cannot
tell, below 0 that it prefers the label but not by much. <strong>Pairs of classes</strong> are ranked by the
probability of the rival times how far the evidence for the label lies from that for the rival, summed over their
pictures; the distance is that of the two centres as a share of the picture's diagonal. A large distance speaks for two
objects in one picture, a small one for a wrong label or for classes that look alike. The ranking says what the
<em>model</em> doubts; whether the label or the model is wrong, you have to see. In the maps red is evidence for the
label, blue for the rival, and each map is scaled by its own largest value."""


def to_page(audit: "Audit", *, most: int) -> str:
    """The whole document."""
    shown = audit.findings[: max(most, 0)]
    doubted = sum(found.gap > 0 for found in audit.findings)
    blocks = [
        f"<h1>Labels under {escape(audit.folder.name or str(audit.folder))} that the model doubts</h1>",
        f"<p>{audit.images} pictures; the model predicts the label of {audit.agreed}. {doubted} are predicted as "
        f"another class, and in {len(audit.findings) - doubted} more the rival comes close. "
        f"Maps: {escape(audit.method)}.</p>",
        f"<p>{ABOUT}</p>",
        _pairs(audit, audit.pairs[:20]),
        f"<h2>Pictures</h2><p>{_counted(len(shown), len(audit.findings))}</p>",
        *(_card(audit, found) for found in shown),
        _left_out("Folders named after no class", audit.left_out),
        _left_out("Files that could not be read", audit.broken),
    ]
    return document("Audit of labels", f'<main style="{MAIN}">{"".join(blocks)}</main>')


def _counted(shown: int, total: int) -> str:
    if not total:
        return "The model doubts no label."
    return f"All {total}, the most suspicious first." if shown == total else f"The first {shown} of {total}."


def _pairs(audit: "Audit", pairs: "Iterable[Pair]") -> str:
    rows = "".join(
        _row(audit.name(p.label), audit.name(p.rival), len(p.findings), f"{p.weight:.2f}", f"{_mean_apart(p):.2f}")
        for p in pairs
    )
    head = _row("label", "rival", "pictures", "weight", "mean distance", tag="th")
    return f'<h2>Pairs of classes</h2><table style="border-collapse:collapse">{head}{rows}</table>' if rows else ""


def _mean_apart(pair: "Pair") -> float:
    return sum(found.apart for found in pair.findings) / len(pair.findings)


def _row(*cells: object, tag: str = "td") -> str:
    inside = "".join(f'<{tag} style="{CELL}">{escape(str(cell))}</{tag}>' for cell in cells)
    return f"<tr>{inside}</tr>"


def _card(audit: "Audit", found: "Finding") -> str:
    label, rival = audit.name(found.label), audit.name(found.rival)
    name = escape(f"{found.path.parent.name}/{found.path.name}")
    sure = "predicted" if found.gap > 0 else "close"
    strong = "font-weight:600" if found.rival_probability >= RECOGNISED else ""
    return (
        f'<div style="{CARD}">{_image(found.picture, f"The picture {found.path.name}")}'
        f"{_image(found.contrast, f'Evidence for {label} in red, for {rival} in blue')}"
        f'<div>label <span style="color:#b2182b">{escape(label)}</span> {found.label_probability:.2f}</div>'
        f'<div style="{strong}">{sure} <span style="color:#2166ac">{escape(rival)}</span> '
        f"{found.rival_probability:.2f}</div>"
        f'<div style="{SMALL}">{found.gap:+.2f} · distance {found.apart:.2f} · {name}</div></div>'
    )


def _image(data: bytes, alt: str) -> str:
    return image(data, alt, look="width:160px;margin-right:6px")


def _left_out(title: str, reasons: Mapping[str, str]) -> str:
    rows = "".join(_row(name, reason) for name, reason in reasons.items())
    return f'<h2>{title}</h2><table style="{SMALL}">{rows}</table>' if rows else ""
