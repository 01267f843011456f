"""From names on the command line to explanations: the model, its input, its targets, and a row for each target."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from vitrail import targets
from vitrail.api import compare
from vitrail.apps.cli.options import Source, read_text
from vitrail.apps.cli.screen import busy, note
from vitrail.attribution import Attribution, SeenPictures
from vitrail.errors import InputError, MissingTensorError, OptionError, TargetError, as_path
from vitrail.methods import DEFAULT_METHOD, METHODS, READABLE, Spec, find_method
from vitrail.models.loading import Loaded, Sample, find_class, find_token, load, silent
from vitrail.models.loading.images import open_image
from vitrail.models.taking import seen_by_loaded
from vitrail.targets import Target

PREDICTED = "none"


def open_model(name: str, arch: str | None, device: str = "cpu", *, task: str | None = None) -> Loaded:
    """The model, ready on the device; for a task, if one is named."""
    with busy(f"loading {name}"), silent():
        return load(name, arch=arch, task=task, device=device)


def sample_of(source: Source, loaded: Loaded) -> Sample:
    """The one input that is named, as the model takes it."""
    if loaded.task not in READERS:
        does = "finds objects" if loaded.task == "boxes" else f"writes text about a {loaded.source}"
        raise InputError(f"{loaded.name} {does}: use vitrail explain.")
    return READERS[loaded.task](source, loaded)


def _image(source: Source, loaded: Loaded) -> Sample:
    _refuse(loaded, pair=source.pair, question=source.question, context=source.context)
    given = source.given
    if given is None:
        raise InputError("there is nothing to explain: name an image.")
    if re.match(r"[a-z]+://", given):
        raise InputError(f"{given} is an address: download the picture, and give the name of its file.")
    path = as_path(given, "an image")
    sample = loaded.image(open_image(path), squash=source.squash)
    if sample.picture is None or loaded.preprocess is None:
        return sample
    again = partial(seen_by_loaded, partial(loaded.preprocess, squash=source.squash))
    return replace(sample, seen=SeenPictures((sample.picture,), preprocess=again, photographs=(path,)))


def _sequence(source: Source, loaded: Loaded) -> Sample:
    pair = source.pair if loaded.task == "causal" else None
    _refuse(loaded, pair=pair, question=source.question, context=source.context)
    if source.given is None:
        raise InputError("there is nothing to explain: name a text, a .txt file or - for stdin.")
    return loaded.text(read_text(source.given), None if source.pair is None else read_text(source.pair))


def _question(source: Source, loaded: Loaded) -> Sample:
    _refuse(loaded, pair=source.pair)
    context = source.context if source.context is not None else source.given
    if source.question is None or context is None:
        raise InputError(f"{loaded.name} answers questions: give --question TEXT and --context TEXT.")
    return loaded.text(read_text(source.question), read_text(context))


READERS = {"image": _image, "sequence": _sequence, "causal": _sequence, "question": _question}


def _refuse(loaded: Loaded, **given: str | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} does not apply to {loaded.name}, which is a model for one {loaded.kind}.")


def find_targets(loaded: Loaded, wanted: Sequence[str], versus: str | None) -> list[Target | None]:
    """One target for each that is named; None stands for what the model predicts."""
    if loaded.task == "question":
        if versus is not None or any(text.lower() != PREDICTED for text in wanted):
            raise TargetError(f"{loaded.name} answers questions; its answer is explained, so leave out --target.")
        return [targets.answer_span()]
    found = [_find(loaded, text) for text in wanted or [PREDICTED]]
    if versus is None:
        return [None if index is None else targets.logit(index) for index in found]
    other = _find(loaded, versus)
    if other is None or None in found:
        raise TargetError("--versus contrasts two classes: name one with --target and another with --versus.")
    if other in found:
        raise TargetError(f"--target and --versus name the same class, {loaded.class_name(other)}: name two.")
    return [targets.difference(index, other) for index in found if index is not None]


def class_index(loaded: Loaded, text: str) -> int | None:
    """The class or next token of this name or index; None for what the model predicts."""
    if loaded.task == "question":
        raise TargetError(f"{loaded.name} answers questions, so it has no classes to contrast: use vitrail explain.")
    return _find(loaded, text)


def _find(loaded: Loaded, text: str) -> int | None:
    if text.lower() == PREDICTED:
        return None
    if loaded.task == "causal":
        return find_token(text, loaded.tokenizer, loaded.classes)
    return find_class(text, loaded.class_names, loaded.classes)


@dataclass(frozen=True)
class ExplainedTarget:
    """One target, explained by every method."""

    title: str
    attributions: list[Attribution]

    @property
    def heading(self) -> str:
        """The title with the probability of the class, where there is one."""
        likely = self.attributions[0].provenance.get("probability")
        return f"{self.title}, {likely[0]:.1%}" if likely else self.title


def check_specs(specs: Sequence[Spec], preset: str, kind: str | None = None) -> None:
    """Raise if a method cannot be built, before the model runs.

    Args:
        kind: of the input; None before a model is loaded whose kind of input would be known.
    """
    for name, given in specs:
        if name == DEFAULT_METHOD:  # which one that is depends on the model
            continue
        entry, options = find_method(name, kind), dict(given)
        entry.build(**entry.resolve(options.pop("preset", preset), options, kind or entry.inputs[0]))


def readable_set(preset: str, kind: str) -> list[Spec]:
    """Return the methods to compare if none is named: a few that fit on one sheet, the default first."""
    presets = {name: {"recommended", *METHODS[name].presets} for name in READABLE[kind] if name != DEFAULT_METHOD}
    return [(DEFAULT_METHOD, {}), *((name, {}) for name, known in presets.items() if preset in known)]


def explain_sample(
    loaded: Loaded,
    sample: Sample,
    specs: Sequence[Spec],
    targets: Sequence[Target | None],
    preset: str,
    *,
    lenient: bool = False,
) -> list[ExplainedTarget]:
    """Every method for every target.

    Args:
        lenient: leave out a method that this model cannot give, since it was not asked for by name.
    """
    on_error = "keep" if lenient else "raise"
    rows = []
    for target in targets:
        with busy(f"explaining with {', '.join(name for name, _ in specs)}"):
            found = compare(loaded.model, sample.inputs, specs, target, preset, on_error=on_error)
        for place, error in found.failed.items():
            if not isinstance(error, (MissingTensorError, OptionError)):
                raise error
            note(f"left out {specs[place][0]}: {error}")
        if found.failed and not len(found):
            raise list(found.failed.values())[-1]
        seen = [one if sample.seen is None else replace(one, seen=sample.seen) for one in found]
        rows.append(ExplainedTarget(loaded.target_name(found[0].target), seen))
    return rows
