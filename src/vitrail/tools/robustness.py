"""Adversarial robustness audit of your own model: how often pictures are rewritten within a given perturbation size."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vitrail.capture.shadow import autograd, shadow
from vitrail.errors import InputError, OptionError, OutputError, as_path, suggest
from vitrail.storage import finite, json_text, write_bytes
from vitrail.tools.pixels import Budget, Levels, PixelModel, View, pixel_model_of, shown_model_of
from vitrail.tools.rewrite import NOTICE, PROBABILITY, Rewriting, Way, rewrite_levels, strongest

if TYPE_CHECKING:
    from PIL.Image import Image

BUDGETS = (*(Budget(linf=levels / 255) for levels in (1, 2, 4, 8)), Budget())
"""One to eight levels of any value, and at last as far as it takes."""
AUDIT_STEPS = 25


@dataclass(frozen=True)
class BudgetRow:
    """The results of all pictures within one budget.

    Args:
        fooled: the share of pictures whose top-1 class became the target.
        sure: the share that reached the probability wanted as well.
        psnr: the mean in decibels over those that were fooled; nan where none was.
        ssim: the same of the structural similarity.
    """

    budget: Budget
    fooled: float
    sure: float
    psnr: float
    ssim: float


@dataclass(frozen=True)
class Robustness:
    """Adversarial robustness audit of your own model: success rate against perturbation size.

    Args:
        rows: one for each budget, smallest first.
        pictures: for each picture its name, its classes and what it took within each budget.
        skipped: pictures that already show the target, and why.
    """

    rows: tuple[BudgetRow, ...]
    pictures: tuple[dict[str, Any], ...]
    skipped: tuple[str, ...]
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        return finite(
            {
                "format": "vitrail.robustness",
                "notice": NOTICE,
                "settings": self.settings,
                "rows": [_flat(row) for row in self.rows],
                "pictures": list(self.pictures),
                "skipped": list(self.skipped),
            }
        )

    def save(self, path: str | Path) -> Path:
        """Write everything as `.json`, or the table as `.csv`."""
        path = as_path(path, "a report")
        if path.suffix.lower() not in WRITERS:
            raise OutputError(f"{path} has no known ending. {suggest(path.suffix, WRITERS)}")
        return write_bytes(path, WRITERS[path.suffix.lower()](self).encode())


def robustness(  # noqa: PLR0913  (each is a choice of its own)
    model: object,
    images: "Iterable[tuple[str, Image]]",
    target: int | str | None = None,
    *,
    budgets: Sequence[Budget] = BUDGETS,
    eta: float | None = None,
    steps: int = AUDIT_STEPS,
    probability: float = PROBABILITY,
    preprocess: View | None = None,
    squash: bool = False,
) -> Robustness:
    """Adversarial robustness audit of your own model: every picture rewritten within each budget.

    Args:
        model: as for `rewrite`.
        images: pairs of a name and a PIL image.
        target: the class all shall be rewritten to; None is the second class the model thinks of, for each.
        budgets: best smallest first: a rewriting that reached the target and meets another budget as well is not
            made again.
        eta: as for `rewrite`, and so are all the others.
    """
    if not budgets:
        raise OptionError("there is no budget to audit: give at least one, such as Budget(linf=2/255).")
    way, shown_model = Way(eta, steps, probability), shown_model_of(model, preprocess, squash=squash)
    pictures: list[dict[str, Any]] = []
    skipped: list[str] = []
    with shadow(shown_model.model) as own, autograd(gradients=True):
        shown_model = replace(shown_model, model=own)
        for name, image in images:
            pixel_model, original = pixel_model_of(shown_model, image)
            before = pixel_model.reload(original)
            first = int(before.argmax())
            wanted = strongest(before, first) if target is None else pixel_model.find(target)
            if first == wanted:
                skipped.append(f"{name}: the model already sees {pixel_model.name(wanted)!r}")
                continue
            found = [_numbers(one) for one in _escalate(pixel_model, original, wanted, budgets, way)]
            names = {"source": pixel_model.name(first), "target": pixel_model.name(wanted)}
            pictures.append({"name": name, **names, "within": found})
    if not pictures:
        raise InputError(f"no picture could be audited: {skipped[0] if skipped else 'there were none'}.")
    settings = {**vars(way), "target": "second class" if target is None else target, "pictures": len(pictures)}
    return Robustness(
        tuple(_row(i, budget, pictures) for i, budget in enumerate(budgets)), tuple(pictures), tuple(skipped), settings
    )


def _escalate(
    pixel_model: PixelModel, original: Levels, target: int, budgets: Sequence[Budget], way: Way
) -> list[Rewriting]:
    """The best rewriting within each budget."""
    found: list[Rewriting] = []
    for budget in budgets:
        fitting = [one for one in found if budget.holds(l2=one.l2, linf=one.linf)]
        done = next((one for one in fitting if one.reached), None)
        tried = done or rewrite_levels(pixel_model, original, target, None, budget, way)
        fooled = next((one for one in fitting if one.fooled and not tried.fooled), None)
        found.append(fooled or tried)
    return found


def _numbers(made: Rewriting) -> dict[str, Any]:
    likeness = {name: getattr(made, name) for name in ("psnr", "ssim", "l2", "linf")}
    likely, steps = float(made.probabilities[1, 1]), len(made.trace) - 1
    return {"fooled": made.fooled, "sure": made.reached, **likeness, "probability": likely, "steps": steps}


def _row(number: int, budget: Budget, pictures: list[dict[str, Any]]) -> BudgetRow:
    found = [picture["within"][number] for picture in pictures]
    fooled = [one for one in found if one["fooled"]]
    psnr, ssim = (fmean(one[name] for one in fooled) if fooled else math.nan for name in ("psnr", "ssim"))
    return BudgetRow(budget, len(fooled) / len(found), fmean(one["sure"] for one in found), psnr, ssim)


def _flat(row: BudgetRow) -> dict[str, Any]:
    return {**vars(row.budget), **{name: finite(x) for name, x in vars(row).items() if name != "budget"}}


def _csv(result: Robustness) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, ["l2", "linf", "fooled", "sure", "psnr", "ssim", "pictures", "notice"])
    writer.writeheader()
    for row in result.rows:
        writer.writerow({**_flat(row), "pictures": len(result.pictures), "notice": NOTICE})
    return sink.getvalue()


WRITERS: dict[str, Callable[[Robustness], str]] = {
    ".json": lambda result: json_text(result.to_dict()),
    ".csv": _csv,
}
