"""The command `doctor`: what was found in a model, as a table and a verdict."""

import typer
from rich.table import Table

from vitrail.apps.cli.opening import open_model
from vitrail.apps.cli.reporting import out
from vitrail.tools.doctor import Report, Row, examine
from vitrail.tools.structure import structure


def run_doctor(model: str, arch: str | None, device: str) -> None:
    """Examine the model and print the report; exit code 1 if it fails."""
    loaded = open_model(model, arch, device)
    inputs = loaded.example().inputs
    report = examine(loaded.model, inputs)
    show_report(report)
    out().print(str(structure(loaded.model, inputs)), markup=False, highlight=False)
    if not report.passed:
        raise typer.Exit(1)


def show_report(report: Report) -> None:
    """Print what was found and whether it holds."""
    screen = out()
    grid = "none" if report.grid is None else f"{report.grid[0]} x {report.grid[1]} patches"
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_row("family", f"{report.family} ({report.model_class})")
    facts.add_row("attention layers", str(len(report.rows)))
    facts.add_row("prefix tokens", str(report.prefix))
    facts.add_row("grid", grid)
    facts.add_row("readout", report.readout)
    screen.print(facts)
    table = Table("layer", "heads", "key/value heads", "head width", "queries x keys", "seam", "error of A·v", "")
    for row in report.rows:
        table.add_row(*_cells(row))
    screen.print(table)
    screen.print(f"logits with and without recording: {'equal bit for bit' if report.same_logits else 'they DIFFER'}")
    failed = [str(row.index) for row in report.rows if not row.passed]
    layers = f"layers {', '.join(failed)} do not match" if failed else "every layer matches"
    screen.print(f"{'passed' if report.passed else 'FAILED'}: {layers}, tolerance {report.rows[0].tolerance:g}")


def _cells(row: Row) -> list[str]:
    return [
        str(row.index),
        str(row.heads),
        str(row.key_value_heads),
        "unknown" if row.head_width is None else str(row.head_width),
        f"{row.queries} x {row.keys}",
        row.seam,
        "not seen" if row.error is None else f"{row.error:.1e}",
        "ok" if row.passed else "WRONG",
    ]
