"""Explain every input of a folder or file, and keep what the page of a report needs.

Inputs are the pictures of a folder, the text files of a folder, or the lines of a text file. Each is explained by all
methods; optionally the highest-scored parts are removed step by step, and random ones for comparison. Pictures are so
small that a page of fifty stays under five megabytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.api import compare
from vitrail.api.requests import MethodSpec
from vitrail.attribution import Attribution
from vitrail.capture.recording.forward import predict
from vitrail.errors import InputError, MethodError, OptionError, VitrailError, as_path, one_line
from vitrail.evaluate import removal
from vitrail.evaluate.metrics import agreement
from vitrail.methods import DEFAULT_METHOD
from vitrail.models.folders import TEXTS, files_in, images_in
from vitrail.models.inputs import read_inputs
from vitrail.models.loading import Loaded, Sample, load
from vitrail.models.texts import read_text
from vitrail.plots.pictures import Picture, as_picture, sample_map, thumbnail, with_map
from vitrail.plots.report.pages import LEVELS, RANDOM, Curve, Entry, Map, Report, Row
from vitrail.plots.tokens import pieces
from vitrail.targets import AnyTarget, only, probability

if TYPE_CHECKING:
    from PIL.Image import Image


Item = tuple[str, Callable[[], tuple[Sample, str]]]
"""The name of an input, and what opens it when its turn comes; it raises InputError where the input is broken."""
TASKS = ("image", "sequence", "causal")
"""What a model may be made for."""


def items_of(source: Path, loaded: Loaded, *, squash: bool, limit: int | None) -> list[Item]:
    """The inputs, at most so many, at even distances."""
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit}: a report needs at least one input.")
    if loaded.task not in TASKS:
        raise InputError(f"{loaded.name} answers questions, but a report takes pictures or sentences: use explain.")
    if not source.exists():
        raise InputError(f"there is no folder or file {source}. Check its name.")
    found = _pictures(source, loaded, squash=squash) if loaded.task == "image" else _texts(source, loaded)
    if limit is None or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def _pictures(source: Path, loaded: Loaded, *, squash: bool) -> list[Item]:
    from vitrail.models.loading.images import open_image

    def read(path: Path) -> tuple[Sample, str]:
        return loaded.image(open_image(path), squash=squash), ""

    return [(path.name, partial(read, path)) for path in (images_in(source) if source.is_dir() else [source])]


def _texts(source: Path, loaded: Loaded) -> list[Item]:
    def read(text: str | Path) -> tuple[Sample, str]:
        text = read_text(text) if isinstance(text, Path) else text
        return loaded.text(text.strip()), text.strip()

    if source.is_dir():
        paths = files_in(source, TEXTS)
        if not paths:
            raise InputError(f"there are no .txt files in {source}, and {loaded.name} reads text.")
        return [(path.name, partial(read, path)) for path in paths]
    lines = enumerate(read_text(source).splitlines(), 1)
    found: list[Item] = [(f"line {n}", partial(read, line)) for n, line in lines if line.strip()]
    if not found:
        raise InputError(f"{source} is empty: write one sentence on each line.")
    return found


FILL = "black"
Curves = tuple[list[Curve], Curve]
Measure = Callable[[Sample, Sequence[Attribution], int], Curves]


def measure_of(loaded: Loaded) -> Measure:
    """The function that gives the methods' curves and the random one, for an input and a class."""
    if loaded.task == "causal":
        raise InputError(f"{loaded.name} is a language model; curves need a model with classes.")
    if loaded.task == "sequence":
        return partial(_text_curves, loaded)
    return partial(_picture_curves, loaded)


def _picture_curves(loaded: Loaded, sample: Sample, found: Sequence[Attribution], index: int) -> Curves:
    assert sample.picture is not None
    image = removal.seen_pixels(loaded, sample.picture)
    size, ends = (image.shape[2], image.shape[3]), removal.ends_of(loaded.logits, image, FILL)
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(RANDOM, *(found[0].grid or size), generator=generator).to(image)

    def curves(maps: Float[Tensor, "n y x"]) -> Float[np.ndarray, "n l"]:
        classes = [index] * len(maps)
        return removal.picture_curves(
            loaded.logits, image, maps, classes, levels=LEVELS, fill=FILL, ends=ends
        ).probability

    rows = [curves(_finest(made, size)) for made in found]
    return _split(np.concatenate([*rows, curves(random)]), len(found))


def _finest(made: Attribution, size: tuple[int, int]) -> Float[Tensor, "1 y x"]:
    """The map as the bench removes pixels in its order: a value for each patch where the method gives no finer one."""
    if made.pixels is None and made.grid is not None:
        return made.scores.reshape(1, *made.grid).detach()
    return made.heatmap(size).detach()


def _text_curves(loaded: Loaded, sample: Sample, found: Sequence[Attribution], index: int) -> Curves:
    ids = np.asarray(read_inputs(sample.inputs).shown[0].cpu())
    generator = np.random.default_rng(0)
    scores = [*(a.scores[0].detach().cpu().numpy() for a in found), *generator.random((RANDOM, len(ids)))]
    curve = removal.text_curves(loaded, [ids] * len(scores), scores, [index] * len(scores))
    return _split(curve.p_k, len(found))


def _split(rows: Float[np.ndarray, "n l"], methods: int) -> Curves:
    return [tuple(row) for row in rows[:methods].tolist()], tuple(rows[methods:].mean(axis=0).tolist())


ROOM = 60_000
"""Bytes for all pictures of an input; a third more once they are written as text, so that fifty need four megabytes."""
STEPS = ((224, 80), (224, 65), (192, 60), (160, 60), (128, 55), (96, 50), (64, 40))
"""Longer side and quality, the first that fits."""


@cache
def _form() -> str:
    """WebP, which every browser shows and which is smaller; JPEG where Pillow was built without it."""
    from PIL import features

    return "WEBP" if features.check("webp") else "JPEG"


def _fitted(picture: Picture, share: int) -> bytes:
    """The picture at the first of the steps that fits, else at the last.

    Args:
        share: so many pictures have to get on with the room of an input.
    """
    data = b""
    for side, quality in STEPS:
        data = thumbnail(picture, side=side, quality=quality, form=_form())
        if len(data) <= ROOM // share:
            break
    return data


def drawn(made: Attribution, picture: "Image | None", share: int) -> dict[str, Any]:
    """The fields of a map: a picture, or the words of a text."""
    if made.kind == "text":
        return {"pieces": tuple(pieces(made, merge=True))}
    assert picture is not None
    seen = as_picture(picture)
    return {"picture": _fitted(with_map(sample_map(made, 0, seen), seen, signed=made.signed), share)}


@dataclass(frozen=True, eq=False)
class ReportPlan:
    """The work that is done with every input."""

    loaded: Loaded
    methods: Sequence[MethodSpec]
    targets: Sequence[AnyTarget]
    preset: str
    measure: Measure | None

    @property
    def pictures(self) -> int:
        """Of one input: for each target what the model saw, and every method's map."""
        return (len(self.methods) + 1) * len(self.targets)


def row_of(plan: ReportPlan, sample: Sample, target: AnyTarget, logits: Tensor, origins: dict[str, Attribution]) -> Row:
    """One target of an input.

    Args:
        logits: what the model said of the input.
        origins: the first attribution under each label is kept here.
    """
    found, failed = _explained(plan, sample, target)
    if not found:
        return Row("", None, (), failed)
    plain = [made.label for made in found]  # with the preset where only it differs
    labels = [f"{x}, {made.preset}" if plain.count(x) > 1 else x for x, made in zip(plain, found, strict=True)]
    for label, made in zip(labels, found, strict=True):
        origins.setdefault(label, made)
    aim = found[0].target
    index = only(aim.first) if aim.first is not None else None
    curves, random, reason = _curves(plan, sample, found, index)
    maps = [
        Map(label, made.signed, curve=curve, **drawn(made, sample.picture, plan.pictures))
        for label, made, curve in zip(labels, found, curves, strict=True)
    ]
    likely = None if index is None else float(probability(index)(logits))
    alike = None
    if len(found) > 1:
        valid, scores = found[0].valid, [made.scores.detach().cpu() for made in found]
        named = dict(zip(labels, scores, strict=True))
        alike = agreement(named, valid=None if valid is None else valid.cpu()).matrix
    return Row(plan.loaded.target_name(aim), likely, tuple(maps), failed, alike, random, reason)


def _explained(plan: ReportPlan, sample: Sample, target: AnyTarget) -> tuple[list[Attribution], dict[str, str]]:
    """The maps of the methods that succeed, and why the others do not."""
    made = compare(plan.loaded.model, sample.inputs, plan.methods, target, plan.preset, on_error="keep")
    for error in made.failed.values():
        if isinstance(error, MethodError):  # it would fail for every input
            raise error
    names = [str(spec[0] if isinstance(spec, tuple) else spec) for spec in plan.methods]
    failed = {names[place]: one_line(error) for place, error in made.failed.items()}
    if failed and len(names) == 1:
        raise InputError(failed[names[0]])
    return list(made), failed


def _curves(
    plan: ReportPlan, sample: Sample, found: Sequence[Attribution], index: int | None
) -> tuple[Sequence[Curve | None], Curve | None, str]:
    none = [None] * len(found)
    if plan.measure is None:
        return none, None, ""
    if index is None:
        return none, None, "the target has no class whose probability could be watched"
    try:
        return *plan.measure(sample, found, index), ""
    except VitrailError as error:
        return none, None, one_line(error)


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
        model: a name that `vitrail.models.loading.load` takes, or what it gave.
        source: a folder of pictures, a `.txt` file with a sentence on each line, or a folder of `.txt` files.
        methods: as for `vitrail.compare`.
        targets: one or several, each as for `vitrail.explain`; None is the predicted class.
        preset: of methods that name none.
        curves: also remove the highest-scored parts step by step, and watch the probability.
        squash: resize pictures without cropping their borders.
        limit: at most so many inputs, at even distances.
        watch: is called with the numbers of inputs done and in all.
    """
    loaded = load(model) if isinstance(model, str) else model
    items = items_of(as_path(source, "a folder or a file of inputs"), loaded, squash=squash, limit=limit)
    specs = [methods] if isinstance(methods, str) else list(methods)
    plan = ReportPlan(loaded, specs, targets, preset, measure_of(loaded) if curves else None)
    entries: list[Entry] = []
    origins: dict[str, Attribution] = {}
    broken: dict[str, str] = {}
    for number, (name, read) in enumerate(items, 1):
        try:
            entries.append(_entry(plan, name, *read(), origins))
        except MethodError:
            raise
        except VitrailError as error:
            broken[name] = one_line(error)
        watch(number, len(items))
    if not entries:
        first = items[0][0]
        raise InputError(f"none of the {len(items)} inputs could be explained; {first}: {broken[first]}")
    described = {}
    for label, made in origins.items():
        options = ", ".join(f"{name}={value}" for name, value in made.options.items())
        described[label] = f"preset {made.preset}{f'; {options}' if options else ''}"
    source, about = Path(source).resolve().name, _about(loaded, next(iter(origins.values())))
    return Report(source, loaded.kind, datetime.now(UTC), about, described, tuple(entries), broken)


def _entry(plan: ReportPlan, name: str, sample: Sample, text: str, origins: dict[str, Attribution]) -> Entry:
    logits = predict(plan.loaded.model, sample.inputs).logits
    predicted = int(logits.argmax())
    rows = tuple(row_of(plan, sample, target, logits, origins) for target in plan.targets)
    if not any(row.maps for row in rows):
        raise InputError("; ".join(f"{method}: {reason}" for method, reason in rows[0].failed.items()))
    likely = float(probability(predicted)(logits))
    picture = b"" if sample.picture is None else _fitted(as_picture(sample.picture), plan.pictures)
    return Entry(name, plan.loaded.class_name(predicted), likely, rows, text, picture)


def _about(loaded: Loaded, made: Attribution) -> dict[str, str]:
    """Return the origin of the results, in words."""
    known, weight = made.provenance, next(loaded.model.parameters())
    return {
        "model": loaded.name,
        "weights": str(known["model_hash"]),
        "class": str(known["model_class"]),
        "device": f"{weight.device}, {str(weight.dtype).removeprefix('torch.')}",
        "versions": ", ".join(f"{name} {number}" for name, number in known["versions"].items()),
    }
