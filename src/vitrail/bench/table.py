"""Tables of results: Markdown, LaTeX or CSV. The same results give the same bytes, however often a run was broken off.

Best in bold; `~` marks what the paired bootstrap cannot tell from the best (p >= 0.05).
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.bench.bootstrap import RESAMPLES, Estimate, estimates
from vitrail.bench.columns import Column
from vitrail.bench.groups import Group, read_groups
from vitrail.bench.store import reading
from vitrail.errors import InputError, OptionError, suggest

SIGNIFICANT = 0.05
REASONS = 5


@dataclass(frozen=True)
class Table:
    """The numbers of one group: a row for each method, a column for each measure.

    Args:
        about: model, data set, protocol and versions, as stored.
    """

    about: Mapping[str, Any]
    title: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Estimate | None, ...]], ...]


def tables(path: str | Path, *, seed: int = 0, resamples: int = RESAMPLES) -> list[Table]:
    """Every table of a results file.

    Args:
        path: the results file.
        seed: of the bootstrap.
        resamples: of the bootstrap; more make the intervals smoother.
    """
    with reading(Path(path)) as store:
        made = [tabulate(group, seed=seed, resamples=resamples) for group in read_groups(store)]
    if not made:
        raise InputError(f"{path} holds no results yet.")
    return made


def tabulate(group: Group, *, seed: int = 0, resamples: int = RESAMPLES) -> Table:
    """The table of a group."""
    columns, keys = group.columns, group.keys
    by_column = [
        estimates(column, group.samples(column, keys), seed=seed, resamples=resamples)
        if keys
        else [None] * len(group.methods)
        for column in columns
    ]
    rows = tuple((method.label, tuple(column[i] for column in by_column)) for i, method in enumerate(group.methods))
    return Table(group.about, group.title, notes(group), tuple(columns), rows)


def notes(group: Group) -> tuple[str, ...]:
    """What decides the numbers: protocol, model, versions; and what was left out."""
    about, protocol = group.about, group.protocol
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines = [
        f"Protocol {protocol.name}: {conventions(group)}; explained class {protocol.target_of(about['data']['kind'])}.",
        f"Model {about['model']['hash']}, data {about['data']['content']}; {about['device']}, perturbed passes in "
        f"{about['dtype']}; {versions}.",
        f"Examples: {len(group.keys)}. In brackets 95 % bootstrap intervals over examples; ~ not told from the best "
        f"(paired bootstrap on shared examples, p >= {SIGNIFICANT:g}). The best is measured on nearly all examples.",
    ]
    return (*lines, *_skipped(group))


def conventions(group: Group) -> str:
    """The conventions that play a part in the group's columns."""
    protocol, needs = group.protocol, {name for column in group.columns for name in column.needs}
    levels = f"{len(protocol.levels)} levels {protocol.levels[0]:g} to {protocol.levels[-1]:g}"
    said = {
        "segmentation": f"threshold {protocol.threshold}",
        "positive": f"{levels}, fill {protocol.fill}, {protocol.units}, {protocol.judged} hit, area {protocol.area}",
        "text_deletion": f"tokens deleted, levels of {protocol.text_mode}{', absolute' if protocol.absolute else ''}",
        "text_padding": f"tokens replaced by [PAD], levels of {protocol.text_mode}",
        "kendall": f"tau of {protocol.kendall}",
        "token_f1": f"k = {', '.join(map(str, protocol.ks))}",
    }
    return "; ".join(text for name, text in said.items() if name in needs) or "plain"


def _skipped(group: Group) -> list[str]:
    """How many results are missing, and the first reasons."""
    reasons: dict[str, int] = {}
    for method in group.methods:
        for reason in method.skipped.values():
            reasons[reason] = reasons.get(reason, 0) + 1
    if not reasons:
        return []
    examples = {key for method in group.methods for key, _ in method.skipped}
    count = sum(reasons.values())
    shown = [f"{reason} ({times} times)" for reason, times in sorted(reasons.items())[:REASONS]]
    more = f" and {len(reasons) - REASONS} more reasons" if len(reasons) > REASONS else ""
    return [f"Skipped: {count} results of {len(examples)} examples: {'; '.join(shown)}{more}."]


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def _close(estimate: Estimate) -> str:
    return "~" if estimate.p is not None and estimate.p >= SIGNIFICANT else ""


def _markdown(table: Table) -> str:
    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "–"
        value = f"**{_number(estimate.value)}**" if estimate.best else f"{_number(estimate.value)}{_close(estimate)}"
        return f"{value} [{_number(estimate.low)}, {_number(estimate.high)}]"

    head = ["method", "n", *(column.title for column in table.columns)]
    lines = [f"### {table.title}", "", _piped(head), _piped(["---", *["---:"] * (len(head) - 1)])]
    lines += [_piped([f"`{name}`", _count(row), *map(cell, row)]) for name, row in table.rows]
    return "\n".join([*lines, "", *(f"{note}  " for note in table.notes)]).rstrip() + "\n"


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _count(row: Sequence[Estimate | None]) -> str:
    return str(max((e.count for e in row if e is not None), default=0))


ESCAPES = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "\\": r"\textbackslash{}"})


def _latex(table: Table) -> str:
    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return "--"
        value = rf"\textbf{{{_number(estimate.value)}}}" if estimate.best else _number(estimate.value)
        close = r"\textsuperscript{$\sim$}" if _close(estimate) else ""
        return rf"{value}{close} \scriptsize[{_number(estimate.low)}, {_number(estimate.high)}]"

    arrows = {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
    head = [f"{column.name.translate(ESCAPES)} {arrows[column.title[-1]]}" for column in table.columns]
    body = [" & ".join([name.translate(ESCAPES), _count(row), *map(cell, row)]) + r" \\" for name, row in table.rows]
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
                writer.writerow([table.title, name, column.name, *numbers, estimate.count, p, int(estimate.best)])
    return buffer.getvalue()


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
