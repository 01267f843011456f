"""The command `doctor`: what was found in a model, as a table and a verdict."""

from typing import TYPE_CHECKING

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.screen import busy, out, reported, show_line, show_table

if TYPE_CHECKING:
    from vitrail.tools.doctor import Examination, LayerCheck

HELP = """Test on your model, with a dummy input, that what is recorded is what it computed.

For every attention layer A·v is computed again and compared with the
layer's own output, and the logits must be equal bit for bit with and
without recording. The exit code is 1 if anything differs.
"""


@reported
def command(
    model: options.ModelArgument,
    arch: options.Arch = None,
    device: options.Device = "cpu",
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Examine the model and print the report; exit code 1 if it fails."""
    from vitrail.apps.cli.session import open_model
    from vitrail.tools.doctor import examine
    from vitrail.tools.structure import structure

    loaded = open_model(model, arch, device)
    inputs = loaded.example().inputs
    with busy("comparing every layer with what the model computes"):
        report = examine(loaded.model, inputs)
        found = structure(loaded.model, inputs)
    out().print(str(found), markup=False, highlight=False, soft_wrap=True)
    show_report(report)
    if not report.passed:
        raise typer.Exit(1)


def show_report(report: "Examination") -> None:
    """Print what was found and whether it holds."""
    grid = "none" if report.grid is None else f"{report.grid[0]} x {report.grid[1]} patches"
    facts = {
        "family": f"{report.family} ({report.model_class})",
        "attention layers": len(report.rows),
        "prefix tokens": report.prefix,
        "grid": grid,
        "readout": report.readout,
    }
    show_table(("property", "found"), list(facts.items()))
    columns = ("layer", "heads", "key/value heads", "head width", "queries x keys", "seam", "error of A·v", "verdict")
    show_table(columns, [_cells(row) for row in report.rows])
    show_line(f"logits with and without recording: {'equal bit for bit' if report.same_logits else 'they DIFFER'}")
    failed = [str(row.index) for row in report.rows if not row.passed]
    layers = f"layers {', '.join(failed)} do not match" if failed else "every layer matches"
    show_line(f"{'passed' if report.passed else 'FAILED'}: {layers}, tolerance {report.rows[0].tolerance:g}")


def _cells(row: "LayerCheck") -> list[str]:
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
