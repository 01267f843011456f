"""Tables as Markdown, LaTeX or CSV. The same results give the same bytes, also after an interrupted run.

The best value is bold; `~` marks values that are not significantly different from it (paired bootstrap, p >= 0.05).
"""

import csv
import io
import re
from collections.abc import Callable, Sequence

from vitrail.errors import OptionError, suggest
from vitrail.evaluate.bench.bootstrap import Estimate
from vitrail.evaluate.bench.table import SIGNIFICANT, Table


def number(value: float) -> str:
    """As tables print it."""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def close(estimate: Estimate) -> str:
    """The mark of values that are not significantly different from the best."""
    return "~" if estimate.p is not None and estimate.p >= SIGNIFICANT else ""


def _markdown(table: Table) -> str:
    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "–"
        value = f"**{number(estimate.value)}**" if estimate.best else f"{number(estimate.value)}{close(estimate)}"
        return f"{value} [{number(estimate.low)}, {number(estimate.high)}]"

    head = ["method", "n", *(_as_words(column.title) for column in table.columns)]
    lines = [f"### {_as_words(table.title)}", "", _piped(head), _piped(["---", *["---:"] * (len(head) - 1)])]
    lines += [_piped([_as_code(name), count(row), *map(cell, row)]) for name, row in table.rows]
    return "\n".join([*lines, "", *(f"{_as_words(note)}  " for note in table.notes)]).rstrip() + "\n"


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*<[|"})


def _as_words(text: str) -> str:
    """Text that Markdown shows as it is: names of models and data sets come from outside."""
    return " ".join(text.split()).translate(MARKUP)


def _as_code(text: str) -> str:
    """Text as code, between more backticks than it has in a row; a bar would end the cell of a table."""
    text = " ".join(text.split()).replace("|", "\\|")
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def count(row: Sequence[Estimate | None]) -> str:
    """How many examples a method was measured on."""
    return str(max((e.count for e in row if e is not None), default=0))


ESCAPES = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "\\": r"\textbackslash{}"})


def _latex(table: Table) -> str:
    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "--"
        value = rf"\textbf{{{number(estimate.value)}}}" if estimate.best else number(estimate.value)
        mark = r"\textsuperscript{$\sim$}" if close(estimate) else ""
        return rf"{value}{mark} \scriptsize[{number(estimate.low)}, {number(estimate.high)}]"

    arrows = {True: r" $\uparrow$", False: r" $\downarrow$", None: ""}
    head = [f"{column.name.translate(ESCAPES)}{arrows[column.higher]}" for column in table.columns]
    body = [" & ".join([name.translate(ESCAPES), count(row), *map(cell, row)]) + r" \\" for name, row in table.rows]
    caption = " ".join([f"{table.title}.", *table.notes]).translate(ESCAPES)
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (1 + len(head))}}}",
            r"\toprule",
            " & ".join(["method", "n", *head]) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _csv(table: Table) -> str:
    """One line for each number, with the title, so that tables can follow each other."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for name, row in table.rows:
        for column, estimate in zip(table.columns, row, strict=True):
            if estimate is not None:
                numbers = [f"{x:.6g}" for x in (estimate.value, estimate.low, estimate.high)]
                p = "" if estimate.p is None else f"{estimate.p:.4g}"
                words = map(_as_cell, (table.title, name, column.name))
                writer.writerow([*words, *numbers, estimate.count, p, int(estimate.best)])
    return buffer.getvalue()


def _as_cell(text: str) -> str:
    """Text that a spreadsheet does not compute: an apostrophe stands before what would be a formula."""
    text = " ".join(text.split())
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


CSV_HEAD = "table,method,metric,value,low,high,examples,p_against_best,best\n"
FORMS: dict[str, Callable[[Table], str]] = {"markdown": _markdown, "latex": _latex, "csv": _csv}


def render(made: Sequence[Table], form: str = "markdown") -> str:
    """The tables as text.

    Args:
        made: what `tables` gave.
        form: `markdown`, `latex` or `csv`.
    """
    if form not in FORMS:
        raise OptionError(f"there is no form {form!r}. {suggest(form, FORMS)}")
    texts = [FORMS[form](table) for table in made]
    return CSV_HEAD + "".join(texts) if form == "csv" else "\n".join(texts)
