"""The answer of a language model and its context: a page to point at, and the table as a figure."""

import json
from html import escape
from typing import TYPE_CHECKING, Any

from vitrail.plots.canvas import new_figure
from vitrail.plots.page import PAGE, POLICY, script_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STYLE = """
.vt-answer{font:16px/1.7 system-ui,sans-serif;max-width:60rem;margin:1rem auto;color:#1a1a1a;
 background:#fff;padding:0 1rem}
.vt-answer h2{font-size:1rem;margin:1.2rem 0 .3rem}
.vt-answer .text{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #ccc;border-radius:6px;padding:.6rem}
.vt-answer .unit{cursor:pointer;border-bottom:2px dotted #666;background:none;border-width:0 0 2px;
 font:inherit;color:inherit;padding:0;text-align:left;white-space:pre-wrap}
.vt-answer .unit:focus-visible,.vt-answer .unit[aria-pressed=true]{outline:3px solid #0b57d0;outline-offset:1px}
.vt-answer .note{color:#555;font-size:.9rem}
.vt-answer ol{margin:.3rem 0}
"""
WIRE = """
function vitrailAnswer(root){
  var data=JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  var spans=root.querySelectorAll('[data-column]'), units=root.querySelectorAll('.unit');
  var cited=root.querySelector('.cited');
  function show(u){
    var row=data.rows[u];
    spans.forEach(function(s){var v=row[+s.dataset.column];
      s.style.background=v>0?'rgba(178,24,43,'+(0.75*v).toFixed(3)+')':v<0?'rgba(33,102,172,'+(-0.75*v).toFixed(3)+')':'';});
    units.forEach(function(b,i){b.setAttribute('aria-pressed',String(i===u));});
    cited.replaceChildren();
    data.cited[u].forEach(function(c){var li=document.createElement('li');li.textContent=c;cited.appendChild(li);});
  }
  units.forEach(function(b,i){['mouseenter','focus','click'].forEach(function(e){b.addEventListener(e,function(){show(i);});});});
  if(units.length)show(0);
}
"""
PAGE_SCRIPT = f"{WIRE}document.querySelectorAll('.vt-answer').forEach(vitrailAnswer);"
"""For pages that hold answers: `document(..., script=PAGE_SCRIPT)`."""
FRAGMENT_SCRIPT = f"(function(){{{WIRE}vitrailAnswer(document.currentScript.closest('.vt-answer'));}})();"


def answer_html(found: Any, *, fragment: bool = False) -> str:  # noqa: ANN401
    """A page without anything from outside; a fragment of it for notebooks.

    Args:
        found: an explained answer, `vitrail.tools.generations.Generation`.
    """
    body = answer_body(found, script=f"<script>{FRAGMENT_SCRIPT}</script>")
    return body if fragment else PAGE.format(
        policy=f"{POLICY}; {script_source(FRAGMENT_SCRIPT)}",
        title="Explained answer",
        style="",
        paper=";background:#fff",
        body=f"<main>{body}</main>",
    )  # fmt: skip


def answer_body(found: Any, *, script: str = "") -> str:  # noqa: ANN401
    """The answer, its passages and its context; the first part is shown where no script runs."""
    first, rows, cited = found.units[0].start, _rows(found), _cited(found)
    context = "".join(
        f'<span data-column="{column}"{_shade(rows[0][column])}>{escape(token)}</span>'
        for column, token in enumerate(found.tokens[:first])
    )
    parts = "".join(
        f'<button type="button" class="unit" aria-pressed="false">{escape(unit.text)}</button>' for unit in found.units
    )
    data = json.dumps({"rows": rows, "cited": cited}).replace("<", "\\u003c").replace("&", "\\u0026")
    method, sink = next(iter(found.sinks.items()))
    share = float(found.template_share().mean())
    template = f", the chat template {share:.0%}; it is not shaded" if share else ""
    return (
        f'<div class="vt-answer"><style>{STYLE}</style><h2>Answer</h2>'
        f'<p class="note">Point at a part of the answer, or move to it with the Tab key.</p>'
        f'<div class="text">{parts}</div>'
        f'<h2>Passages it rests on</h2><ol class="cited" aria-live="polite">'
        f"{''.join(f'<li>{escape(one)}</li>' for one in cited[0])}</ol>"
        f'<h2>Context</h2><div class="text">{context}</div>'
        f'<p class="note">{escape(method)}: red speaks for the answer, blue against it. The first token holds '
        f"{float(sink.mean()):.0%} of the scores on the context{template}.</p>"
        f'<script type="application/json">{data}</script>{script}</div>'
    )


def _shade(value: float) -> str:
    """The style of a token, as the script would set it."""
    if not value:
        return ""
    colour = "178,24,43" if value > 0 else "33,102,172"
    return f' style="background:rgba({colour},{0.75 * abs(value):.3f})"'


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


def _cited(found: Any) -> list[list[str]]:  # noqa: ANN401
    """For each part of the answer its passages in words."""
    return [
        [
            f"{one.score:.0%}{_between(one) if len(found.tables) > 1 else ''}, {one.passage.source}: "
            f"{one.passage.text.strip()}"
            for one in row
        ]
        for row in found.cite(3)
    ]


def _between(one: Any) -> str:  # noqa: ANN401
    """The interval of a citation over several methods."""
    return f" ({one.low:.0%} to {one.high:.0%})"


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
