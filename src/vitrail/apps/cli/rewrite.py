"""The commands `transfer` (attention follows a gradient) and `rewrite` (adversarial robustness audit)."""

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.options import Source, aim_option, check_file, check_not_replaced, check_source, result_option
from vitrail.apps.cli.screen import busy, counted, note, reported, show_line, show_table
from vitrail.errors import InputError, OptionError, TargetError, VitrailError
from vitrail.models.folders import images_in

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitrail.models.loading import Loaded
    from vitrail.tools.rewrite import Rewriting, Way
    from vitrail.tools.robustness import Robustness
    from vitrail.tools.transfer import Transfer


REWRITE = """Adversarial robustness audit of your own model.

Pixels follow the gradient until the model sees another class, while a
person sees no change. The result is a PNG of the model's own size that
still does so when it is saved and loaded: open it with --squash.

With a folder of images: how often that succeeds, against the size of
the perturbation. Without --target each picture is rewritten to the
second class the model thinks of.

[bold]Examples[/]

  vitrail rewrite ball.png -m photo -t church -o new.png --sheet sheet.png
  vitrail rewrite ball.png -m photo -t church --linf 4/255 -o new.png
  vitrail rewrite photos/ -m photo -o audit.json
  vitrail rewrite photos/ -m photo --l2 0.5 --l2 1 --l2 2 -o audit.csv
"""
TABLES = (".json", ".csv")
PROBABILITY = 0.9


@reported
def rewrite(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: options.Model,
    given: options.Given = None,
    arch: options.Arch = None,
    target: Annotated[str | None, options.target_option(help="The class to rewrite to, by name or index.")] = None,
    source: Annotated[
        str | None,
        aim_option(help="The class that is lowered in all steps; default: at each step the most probable one."),
    ] = None,
    eta: Annotated[
        float | None, aim_option(help="The step size; default: the first step is a tenth of a level.")
    ] = None,
    steps: Annotated[
        int | None, aim_option(help="Largest number of steps; the default is 400, for a folder 25.")
    ] = None,
    probability: Annotated[float, aim_option(help="Stop at this probability of the target.")] = PROBABILITY,
    l2: Annotated[
        list[str] | None,
        aim_option(help="The largest Euclidean norm of the change, values from 0 to 1. Repeat it for a folder."),
    ] = None,
    linf: Annotated[
        list[str] | None, aim_option(help="The largest change of any value, such as 2/255. Repeat it for a folder.")
    ] = None,
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    output: Annotated[
        Path | None,
        options.output_option(
            help="The new picture, .png, or its numbers, .json; for a folder the table, .json or .csv."
        ),
    ] = None,
    sheet: Annotated[
        Path | None, result_option(help="Original, new picture, amplified difference, trace: .png, .pdf.")
    ] = None,
    difference: Annotated[Path | None, result_option(help="The amplified difference alone, .png.")] = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Rewrite a picture, or audit a folder."""
    place = Source(given, squash=squash)
    check_source(place)
    sizes = _sizes(l2, linf)
    if place.folder is not None:
        wrong = {"--source": source, "--sheet": sheet, "--difference": difference}
        if named := [name for name, value in wrong.items() if value is not None]:
            raise OptionError(f"{named[0]} is for one picture, but a folder was given.")
        check_file(output, TABLES)
    else:
        if target is None:
            raise TargetError("name the class to rewrite the picture to: --target CLASS.")
        if len(sizes) > 1:
            raise OptionError("several budgets are for a folder of images: give one --l2 or one --linf for a picture.")
        for path, endings in ((output, (".png", ".json")), (sheet, (".png", ".pdf", ".svg")), (difference, (".png",))):
            check_file(path, endings)
        check_not_replaced([output, sheet, difference], [given, model])

    from vitrail.apps.cli.session import open_model
    from vitrail.models.loading.images import open_image
    from vitrail.tools.pixels import shown_model_of
    from vitrail.tools.rewrite import STEPS, Way, rewrite
    from vitrail.tools.robustness import AUDIT_STEPS

    if place.folder is not None:
        way = Way(eta, AUDIT_STEPS if steps is None else steps, probability)
        paths = images_in(place.folder)
        check_not_replaced([output], [*paths, model])
        _audit(open_model(model, arch, device), paths, target, sizes, way, output, squash=squash)
        return
    assert target is not None  # checked above
    way = Way(eta, STEPS if steps is None else steps, probability)
    loaded = open_model(model, arch, device)
    shown_model_of(loaded, None, squash=squash)
    image, limits = open_image(Path(given or "")), sizes[0] if sizes else {}
    with busy(f"rewriting to {target}"):
        made = rewrite(loaded, image, target, source=source, squash=squash, **vars(way), **limits)
    _show(made)
    _write(made, output, sheet, difference)


def _sizes(l2: list[str] | None, linf: list[str] | None) -> list[dict[str, Any]]:
    """The budgets named, smallest first; both norms together are one budget."""
    norms, sizes = [_size("l2", text) for text in l2 or []], [_size("linf", text) for text in linf or []]
    if norms and sizes:
        if len(norms) > 1 or len(sizes) > 1:
            raise OptionError("several budgets must use one norm: repeat --l2 or --linf, not both.")
        return [{"l2": norms[0], "linf": sizes[0]}]
    return [{"l2": size} for size in sorted(norms)] or [{"linf": size} for size in sorted(sizes)]


def _size(name: str, text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise OptionError(f"--{name} {text} is not a size: write a number such as 0.5, or 2/255.") from error


def _show(made: "Rewriting") -> None:
    from vitrail.tools.rewrite import NOTICE

    source, target = made.names
    pairs = zip(("original", "rewritten"), made.probabilities.tolist(), strict=True)
    rows = [(name, f"{first:.3f}", f"{second:.3f}") for name, (first, second) in pairs]
    show_table(("picture", source, target), rows, f"{source} → {target}")
    show_line(
        f"{len(made.trace) - 1} steps, PSNR {made.psnr:.2f} dB, SSIM {made.ssim:.4f}, L2 {made.l2:.3f}, "
        f"Linf {made.linf * 255:.0f}/255"
    )
    show_line(NOTICE)
    if not made.reached:
        wanted = f"{target} with a probability of {made.settings['probability']:g}"
        note(f"not reached: {wanted}. Allow more --steps or a larger budget.")


def _write(made: "Rewriting", output: Path | None, sheet: Path | None, difference: Path | None) -> None:
    from vitrail.plots.canvas import rendered
    from vitrail.storage import write_bytes
    from vitrail.tools.rewrite import NOTICE, png

    if output is not None:
        note(f"wrote {made.save(output)}")
    if sheet is not None:
        about = {"Title": f"{made.names[0]} to {made.names[1]}: {NOTICE}"}
        note(f"wrote {write_bytes(sheet, rendered(made.plot(), sheet.suffix.lower()[1:], metadata=about))}")
    if difference is not None:
        note(f"wrote {write_bytes(difference, png(made.difference, made.to_dict()))}")


def _audit(
    loaded: "Loaded",
    paths: list[Path],
    target: str | None,
    sizes: list[dict[str, Any]],
    way: "Way",
    output: Path | None,
    *,
    squash: bool,
) -> None:
    from vitrail.tools.pixels import Budget
    from vitrail.tools.rewrite import NOTICE
    from vitrail.tools.robustness import BUDGETS, robustness

    failed: list[str] = []
    budgets = [Budget(**size) for size in sizes] or BUDGETS
    found = robustness(loaded, _images(paths, failed), target, budgets=budgets, squash=squash, **vars(way))
    show_audit(found)
    show_line(NOTICE)
    for line in (*failed, *(f"left out {line}" for line in found.skipped)):
        note(line)
    if output is not None:
        note(f"wrote {found.save(output)}")
    if failed:
        raise typer.Exit(1)


def _images(paths: list[Path], failed: list[str]) -> "Iterator[tuple[str, Image]]":
    """The pictures that can be opened."""
    from vitrail.models.loading.images import open_image

    with counted("rewriting") as moved:
        for number, path in enumerate(paths):
            moved(number, len(paths))
            try:
                image = open_image(path)
            except VitrailError as error:
                failed.append(f"failed: {error}")
                continue
            yield path.name, image


def show_audit(found: "Robustness") -> None:
    """Success rate against perturbation size."""
    sure = f"with p ≥ {found.settings['probability']:g}"
    rows = []
    for row in found.rows:
        budget = [] if row.budget.l2 is None else [f"L2 {row.budget.l2:g}"]
        budget += [] if row.budget.linf is None else [f"Linf {row.budget.linf * 255:g}/255"]
        likeness = ("-", "-") if math.isnan(row.psnr) else (f"{row.psnr:.1f} dB", f"{row.ssim:.4f}")
        rows.append((", ".join(budget) or "none", f"{row.fooled:.0%}", f"{row.sure:.0%}", *likeness))
    show_table(("budget", "fooled", sure, "PSNR", "SSIM"), rows, f"{len(found.pictures)} pictures")


TRANSFER = """Let the attention maps follow the gradient of a class, and watch.

The maps are the only parameters; the model is not changed. By default
the class is descended, as in the paper: attention leaves it, and moves
to what speaks for other classes. Each step is explained by
complete_gradient: red for the class, blue against it; every map has
its own scale.

[bold]Examples[/]

  vitrail transfer zebra.png -m vit_tiny_patch16_224 -t zebra
      -o strip.png -o film.gif
  vitrail transfer zebra.png -m vit_tiny_patch16_224 -t zebra
      --direction toward --renormalise --steps 30 -o film.gif
  vitrail transfer "A dull film with a great cast." -m sentiment -o film.gif
"""
ENDINGS = (".png", ".pdf", ".svg", ".gif", ".json")


@reported
def transfer(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: options.Model,
    given: options.Given = None,
    arch: options.Arch = None,
    target: Annotated[
        str | None, options.target_option(help="A class by name or index; none for what is predicted.")
    ] = None,
    eta: Annotated[float, aim_option(help="The learning rate of the maps.")] = 4e-4,
    steps: Annotated[int, aim_option(help="How many updates.")] = 10,
    direction: Annotated[str, aim_option(help="away (lowers the target, as in the paper) or toward.")] = "away",
    gradient: Annotated[
        str, aim_option(help="What the explanations differentiate: the full graph, or maps as leaf tensors.")
    ] = "full",
    renormalise: Annotated[  # noqa: FBT002
        bool,
        aim_option(
            "--renormalise", help="After each update, set negative attention to zero and divide rows by their sums."
        ),
    ] = False,
    pair: options.Pair = None,
    device: options.Device = "cpu",
    squash: options.Squash = False,  # noqa: FBT002
    output: Annotated[
        list[Path] | None,
        options.output_option(
            help="A strip of steps as .png, .pdf or .svg, all steps as .gif, the numbers as .json. May be repeated."
        ),
    ] = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Follow the gradient with the attention maps."""
    source = Source(given, pair=pair, squash=squash)
    check_source(source)
    if source.folder is not None:
        raise InputError(f"{given} is a folder, but a film shows one input.")
    for path in output or []:
        check_file(path, ENDINGS)
    check_not_replaced(output or [], [given, pair, model])

    from vitrail.apps.cli.session import find_targets, open_model, sample_of
    from vitrail.apps.cli.show import show_answer
    from vitrail.tools.transfer import transfer

    loaded = open_model(model, arch, device)
    sample = sample_of(source, loaded)
    (aim,) = find_targets(loaded, [] if target is None else [target], None)
    with busy("following the gradient"):
        film = transfer(
            loaded.model, sample.inputs, aim,
            eta=eta, steps=steps, direction=direction, gradient=gradient, renormalise=renormalise,
        )  # fmt: skip
    show_answer(loaded, sample)
    name = loaded.target_name(film.target)
    _show_transfer(loaded, film, name)
    for path in output or []:
        note(f"wrote {film.save(path, sample.picture, title=f'attention transfer: {name}')}")


def _show_transfer(loaded: "Loaded", film: "Transfer", name: str) -> None:
    """The target's logit and probability at each step, and what is predicted instead."""
    first = film.target.first
    index = first[0] if isinstance(first, tuple) else None
    rows = []
    for step in range(len(film)):
        best = int(film.logits[step, 0].argmax())
        likely = "" if index is None else f"{float(film.probabilities[step, 0, index]):.3f}"
        rows.append((step, f"{float(film.scalar[step, 0]):.3f}", likely, loaded.class_name(best)))
    show_table(("step", "logit", "probability", "prediction"), rows, f"attention transfer: {name}")
    if not film.logits[0].equal(film.clean):
        note(f"the unchanged maps give the model's own logits to {film.deviation:.1g}")
