"""The answer of a language model and its context: a page to point at, and the table as a figure."""

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from vitrail.plots.canvas import new_figure
from vitrail.plots.page import document, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    body = answer_body(found, script=FRAGMENT_SCRIPT)
    if fragment:
        return str(body)
    return document("Explained answer", Markup("<main>{}</main>").format(body), inside=FRAGMENT_SCRIPT)


def answer_body(found: Any, *, script: str = "") -> Markup:  # noqa: ANN401
    """The answer, its passages and its context; the first part is shown where no script runs.

    Args:
        script: put at the end, for where the document around it brings none.
    """
    rows, cited = _rows(found), _cited(found)
    method, sink = next(iter(found.sinks.items()))
    return render(
        "plots/templates/answer.html",
        units=[unit.text for unit in found.units],
        context=list(zip(found.tokens[: found.units[0].start], rows[0], strict=True)),
        data={"rows": rows, "cited": cited},
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
