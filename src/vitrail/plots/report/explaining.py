"""Explain every input of a folder or file, one by one, and keep what a page needs of it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from vitrail.api import DEFAULT_METHOD, MethodSpec
from vitrail.attribution import Attribution
from vitrail.errors import InputError, MethodError, VitrailError
from vitrail.models.loading import Loaded, Sample, load
from vitrail.plots.report.drawing import drawn_picture
from vitrail.plots.report.entries import Entry, Report
from vitrail.plots.report.perturbing import measure_of
from vitrail.plots.report.reading import items_of
from vitrail.plots.report.rows import Plan, one_line, row_of
from vitrail.targets import AnyTarget, probability
from vitrail.tools.looking import look


def of_inputs(  # noqa: PLR0913  (each is a choice of its own)
    model: str | Loaded,
    source: str | Path,
    methods: Sequence[MethodSpec] | str = DEFAULT_METHOD,
    *,
    targets: Sequence[AnyTarget] = (None,),
    preset: str = "recommended",
    curves: bool = False,
    squash: bool = False,
    limit: int | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """A report of inputs; those that are broken are listed in it.

    Args:
        model: a name that `vitrail.loading.load` takes, or what it gave.
        source: a folder of pictures, a `.txt` file with a sentence on each line, or a folder of `.txt` files.
        methods: as for `vitrail.compare`.
        targets: one or several, each as for `vitrail.explain`; None is the predicted class.
        preset: of methods that name none.
        curves: also remove the highest-scored parts step by step, and watch the probability.
        squash: resize pictures without cropping their borders.
        limit: at most so many inputs, at even distances.
        watch: is told how many of how many inputs are done.
    """
    loaded = load(model) if isinstance(model, str) else model
    items = items_of(Path(source), loaded, squash=squash, limit=limit)
    specs = [methods] if isinstance(methods, str) else list(methods)
    plan = Plan(loaded, specs, targets, preset, measure_of(loaded) if curves else None)
    entries: list[Entry] = []
    origins: dict[str, Attribution] = {}
    broken: dict[str, str] = {}
    for number, item in enumerate(items, 1):
        try:
            sample, text = item.read()
            entries.append(_entry(plan, item.name, sample, text, origins))
        except MethodError:
            raise
        except VitrailError as error:
            broken[item.name] = one_line(error)
        watch(number, len(items))
    if not entries:
        raise InputError(
            f"none of the {len(items)} inputs could be explained; {items[0].name}: {broken[items[0].name]}"
        )
    name = Path(source).resolve().name
    described = {label: _described(made) for label, made in origins.items()}
    return Report(name, loaded.kind, datetime.now(UTC), _about(plan, origins), described, tuple(entries), broken)


def _entry(plan: Plan, name: str, sample: Sample, text: str, origins: dict[str, Attribution]) -> Entry:
    logits = look(plan.loaded.model, sample.inputs).logits
    predicted = int(logits.argmax())
    rows = tuple(row_of(plan, sample, target, logits, origins) for target in plan.targets)
    if not any(row.maps for row in rows):
        raise InputError("; ".join(f"{method}: {reason}" for method, reason in rows[0].failed.items()))
    return Entry(
        name,
        plan.loaded.class_name(predicted),
        float(probability(predicted)(logits)),
        rows,
        text,
        b"" if sample.picture is None else drawn_picture(sample.picture, plan.pictures),
    )


def _about(plan: Plan, origins: Mapping[str, Attribution]) -> dict[str, str]:
    """Where the results come from, in words."""
    known = next(iter(origins.values())).provenance
    weight = next(plan.loaded.model.parameters())
    return {
        "model": plan.loaded.name,
        "weights": str(known["model_hash"]),
        "class": str(known["model_class"]),
        "device": f"{weight.device}, {str(weight.dtype).removeprefix('torch.')}",
        "versions": ", ".join(f"{name} {number}" for name, number in known["versions"].items()),
    }


def _described(made: Attribution) -> str:
    options = ", ".join(f"{name}={value}" for name, value in made.options.items())
    return f"preset {made.preset}{f'; {options}' if options else ''}"
