"""The command `rewrite`: an adversarial robustness audit of one's own model, on a picture or a folder of them."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from vitrail.apps.cli import options
from vitrail.apps.cli import rewriting_words as words
from vitrail.apps.cli.opening import open_model
from vitrail.apps.cli.outputs import check_apart, check_writable
from vitrail.apps.cli.reporting import note, out, reported
from vitrail.apps.cli.sources import Source, check_source, images_in
from vitrail.errors import OptionError, OutputError, TargetError, VitrailError
from vitrail.models.loading import Loaded
from vitrail.models.loading.images import open_image
from vitrail.tools.lens import Budget, sight_of
from vitrail.tools.rewrite import NOTICE, PROBABILITY, STEPS, Rewriting, Way, rewrite
from vitrail.tools.robustness import AUDIT_STEPS, BUDGETS, WRITERS, Robustness, robustness

if TYPE_CHECKING:
    from PIL.Image import Image


@reported
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: options.Model,
    given: options.Given = None,
    arch: options.Arch = None,
    target: words.TARGET = None,
    source: words.SOURCE = None,
    eta: words.ETA = None,
    steps: words.COUNT = None,
    probability: words.LIKELY = PROBABILITY,
    l2: words.L2 = None,
    linf: words.LINF = None,
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    output: words.OUTPUT = None,
    sheet: words.SHEET = None,
    difference: words.DIFFERENCE = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Rewrite a picture, or audit a folder."""
    place = Source(given, squash=squash)
    check_source(place)
    budgets = _budgets(l2, linf)
    if place.folder is not None:
        _refuse({"--source": source, "--sheet": sheet, "--difference": difference})
        way = Way(eta, AUDIT_STEPS if steps is None else steps, probability)
        _check(output, WRITERS)
        check_apart([output], [*images_in(place.folder), model])
        _audit(open_model(model, arch, device), place.folder, target, budgets, way, output, squash=squash)
        return
    if target is None:
        raise TargetError("name the class to rewrite the picture to: --target CLASS.")
    if len(budgets) > 1:
        raise OptionError("several budgets are for a folder of images: give one --l2 or one --linf for a picture.")
    way = Way(eta, STEPS if steps is None else steps, probability)
    for path, endings in ((output, (".png", ".json")), (sheet, (".png", ".pdf", ".svg")), (difference, (".png",))):
        _check(path, endings)
    check_apart([output, sheet, difference], [given, model])
    loaded = open_model(model, arch, device)
    sight_of(loaded, None, squash=squash)
    image = open_image(Path(given or ""))
    limits = vars(budgets[0]) if budgets else {}
    made = rewrite(loaded, image, target, source=source, squash=squash, **vars(way), **limits)
    _show(made)
    _write(made, output, sheet, difference)


def _budgets(l2: list[str] | None, linf: list[str] | None) -> list[Budget]:
    """The budgets named, smallest first; both norms together are one budget."""
    norms, sizes = [_size("l2", text) for text in l2 or []], [_size("linf", text) for text in linf or []]
    if norms and sizes:
        if len(norms) > 1 or len(sizes) > 1:
            raise OptionError("several budgets are of one norm: repeat --l2 or --linf, not both.")
        return [Budget(norms[0], sizes[0])]
    return [Budget(l2=size) for size in sorted(norms)] or [Budget(linf=size) for size in sorted(sizes)]


def _size(name: str, text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise OptionError(f"--{name} {text} is not a size: write a number such as 0.5, or 2/255.") from error


def _refuse(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise OptionError(f"{name} is for one picture, but a folder was given.")


def _check(path: Path | None, endings: Sequence[str] | dict) -> None:
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise OutputError(f"{path} does not end in {' or '.join(endings)}.")
    check_writable(path)


def _show(made: Rewriting) -> None:
    source, target = made.names
    table = Table("picture", source, target, title=f"{source} → {target}")
    for name, (first, second) in zip(("original", "rewritten"), made.probabilities.tolist(), strict=True):
        table.add_row(name, f"{first:.3f}", f"{second:.3f}")
    out().print(table)
    out().print(
        Text(
            f"{len(made.trace) - 1} steps, PSNR {made.psnr:.2f} dB, SSIM {made.ssim:.4f}, L2 {made.l2:.3f}, "
            f"Linf {made.linf * 255:.0f}/255"
        )
    )
    out().print(Text(NOTICE))
    if not made.reached:
        wanted = f"{target} with a probability of {made.settings['probability']:g}"
        note(f"not reached: {wanted}. Allow more --steps or a larger budget.")


def _write(made: Rewriting, output: Path | None, sheet: Path | None, difference: Path | None) -> None:
    from vitrail.plots.canvas import rendered
    from vitrail.storage import write_bytes
    from vitrail.tools.rewrite import png

    if output is not None:
        note(f"wrote {made.save(output)}")
    if sheet is not None:
        about = {"Title": f"{made.names[0]} to {made.names[1]}: {NOTICE}"}
        note(f"wrote {write_bytes(sheet, rendered(made.plot(), sheet.suffix.lower()[1:], metadata=about))}")
    if difference is not None:
        note(f"wrote {write_bytes(difference, png(made.difference, made.to_dict()))}")


def _audit(
    loaded: Loaded,
    folder: Path,
    target: str | None,
    budgets: list[Budget],
    way: Way,
    output: Path | None,
    *,
    squash: bool,
) -> None:
    failed: list[str] = []
    images = _images(images_in(folder), failed)
    found = robustness(loaded, images, target, budgets=budgets or BUDGETS, squash=squash, **vars(way))
    out().print(audit_table(found))
    out().print(Text(NOTICE))
    for line in (*failed, *(f"left out {line}" for line in found.skipped)):
        note(line)
    if output is not None:
        note(f"wrote {found.save(output)}")
    if failed:
        raise typer.Exit(1)


def _images(paths: list[Path], failed: list[str]) -> "Iterator[tuple[str, Image]]":
    """The pictures that can be opened."""
    for path in track(paths, "rewriting", console=Console(stderr=True)):
        try:
            image = open_image(path)
        except VitrailError as error:
            failed.append(f"failed: {error}")
            continue
        yield path.name, image


def audit_table(found: Robustness) -> Table:
    """Success rate against perturbation size."""
    sure = f"with p ≥ {found.settings['probability']:g}"
    table = Table("budget", "fooled", sure, "PSNR", "SSIM", title=f"{len(found.pictures)} pictures")
    for row in found.rows:
        likeness = ("-", "-") if math.isnan(row.psnr) else (f"{row.psnr:.1f} dB", f"{row.ssim:.4f}")
        table.add_row(_said(row.budget), f"{row.fooled:.0%}", f"{row.sure:.0%}", *likeness)
    return table


def _said(budget: Budget) -> str:
    sizes = [] if budget.l2 is None else [f"L2 {budget.l2:g}"]
    if budget.linf is not None:
        sizes.append(f"Linf {budget.linf * 255:g}/255")
    return ", ".join(sizes) or "none"
