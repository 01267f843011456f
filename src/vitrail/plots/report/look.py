"""How a report looks, and the one small script it runs: without it nothing is missing but sorting and filtering."""

from vitrail.plots.colours import ink, shade
from vitrail.plots.report.charts import styles

SHADES = 12
"""Steps from white to the darkest token."""
STYLE = """
:root{color-scheme:light;--ink:#1c1c1c;--grey:#5f5f5f;--line:#dcdcdc;--soft:#f6f6f4}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink)}
main{max-width:78rem;margin:0 auto;padding:1.2rem 1.5rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:.4rem 0 .8rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:2.4rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
h3{font-size:1.02rem;margin:0;overflow-wrap:anywhere}h4{font-size:.92rem;margin:.7rem 0 .2rem}
a{color:#0b5cad}:focus-visible{outline:2px solid #0b5cad}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.8rem 0}
dl{display:flex;flex-wrap:wrap;gap:.35rem 1.6rem;margin:.6rem 0;font-size:.9rem}
dt{color:var(--grey);font-size:.78rem}dd{margin:0;overflow-wrap:anywhere}
.small{color:var(--grey);font-size:.86rem;margin:.35rem 0;max-width:60rem;overflow-wrap:anywhere}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.9rem;margin:.4rem 0}
th,td{padding:.28rem .8rem .28rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tbody th{font-weight:400;min-width:8rem;max-width:26rem;overflow-wrap:break-word}tbody .long{min-width:16rem}
thead th{font-weight:600;vertical-align:bottom}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}thead .n{white-space:normal}
td small{color:var(--grey)}td[style]{padding-left:.8rem}
th button{font:inherit;color:inherit;background:none;border:0;padding:0;text-align:inherit;cursor:pointer;
text-decoration:underline dotted #8a8a8a;text-underline-offset:.2em}
th[aria-sort=ascending] button::after{content:" \\25b2"}
th[aria-sort=descending] button::after{content:" \\25bc"}
#controls input{font:inherit;padding:.25rem .5rem;width:18rem;max-width:100%;border:1px solid #8a8a8a}
article{border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem;margin:0 0 1rem;scroll-margin-top:.5rem}
article:target{border-color:#0b5cad}
.row{display:flex;flex-wrap:wrap;gap:.4rem 1.6rem}.row>div{flex:1 1 26rem;min-width:0}.row>.chart{flex:0 1 19rem}
.maps{display:flex;flex-wrap:wrap;gap:.7rem;margin:.6rem 0}
.maps figure{margin:0;width:9.4rem}.maps img{display:block;width:100%;border-radius:.25rem}
figcaption{font-size:.82rem;overflow-wrap:anywhere}
.text{margin:.5rem 0}.text b{font-size:.82rem;font-weight:600;display:block}.text p{margin:.1rem 0;line-height:1.9}
.text span{padding:.1em .18em;border-radius:.2em}.text .o{color:#767676}
.scale{display:inline-block;width:7rem;height:.7rem;border:1px solid var(--line);vertical-align:-.05rem;margin:0 .4rem}
.charts{display:flex;flex-wrap:wrap;gap:1rem 1.6rem}.chart{margin:.4rem 0;width:24rem;max-width:100%}
.chart h4{margin:0}.chart>svg{display:block;width:100%}svg text{font-size:11px;fill:var(--grey)}.m{text-anchor:middle}
.e{text-anchor:end}svg path{stroke:var(--line)}polyline{fill:none;stroke:var(--c);stroke-width:1.8}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.2rem 0 0;padding:0;font-size:.82rem}
.legend svg{width:1.5rem;height:.55rem;margin-right:.3rem}
summary{cursor:pointer;color:#0b5cad;font-size:.9rem}
@media (max-width:40rem){main{padding:.8rem .8rem 3rem}.maps figure{width:calc(50% - .35rem)}article{padding:.7rem}
h1{font-size:1.35rem}}
@media print{#controls,nav{display:none}article,.chart{break-inside:avoid}.scroll{overflow:visible}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}main{max-width:none;padding:0}}
"""
SCRIPT = """(() => {
const all = (where, what) => [...where.querySelectorAll(what)];
const part = row => document.getElementById(row.dataset.for);
const value = cell => cell.classList.contains('n') ? Number(cell.dataset.v ?? -Infinity) : cell.textContent;
const key = (row, at) => value(row.cells[at]);
const order = (a, b) => a === b ? 0 : typeof a === 'number' ? a - b : a.localeCompare(b, undefined, {numeric: true});
for (const table of all(document, 'table.sortable')) {
  all(table, 'thead th').forEach((head, at) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      all(table, 'thead th').forEach(other => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const rows = all(table, 'tbody tr').sort((a, b) => order(key(a, at), key(b, at)) * (down ? -1 : 1));
      for (const row of rows) {
        row.parentNode.append(row);
        const shown = part(row);
        if (shown) shown.parentNode.append(shown);
      }
    });
  });
}
const controls = document.getElementById('controls');
if (controls) {
  controls.hidden = false;
  const field = controls.querySelector('input'), told = controls.querySelector('output');
  const rows = all(document, 'tr[data-for]');
  const filter = () => {
    const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
    const kept = new Set();
    for (const row of rows) {
      const text = (row.textContent + ' ' + (part(row)?.querySelector('h3').textContent ?? '')).toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      if (!row.hidden) kept.add(row.dataset.for);
    }
    for (const shown of all(document, 'article')) shown.hidden = !kept.has(shown.id);
    told.textContent = words.length ? kept.size + ' of ' + new Set(rows.map(row => row.dataset.for)).size : '';
  };
  field.addEventListener('input', filter);
  filter();
}
})();"""


def style() -> str:
    """The style sheet, with the colours of tokens and lines."""
    shaded = (
        f".{sign}{step}{{background:{(colour := shade(way * step / SHADES))};color:{ink(colour)}}}"
        for sign, way in (("p", 1), ("q", -1))
        for step in range(1, SHADES + 1)
    )
    return STYLE + "".join(shaded) + styles()


def token_class(score: float) -> str:
    """The class of a token with a score from -1 to 1; none where it is white."""
    step = round(min(abs(score), 1.0) * SHADES)
    return f"{'p' if score > 0 else 'q'}{step}" if step else ""
