"""The explanations of a batch, each made once.

`Shown` is what one method gives for a batch. A metric may also need the maps of other classes (`Further`) or of the
model with randomised weights. One recording serves all methods that need the same examples and classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vitrail import targets
from vitrail.api.repeated import RepeatedExplainer
from vitrail.attribution import Attribution
from vitrail.errors import VitrailError, one_line
from vitrail.evaluate import metrics
from vitrail.evaluate.bench.opened import RunSettings
from vitrail.evaluate.bench.pictures import Pictures
from vitrail.evaluate.bench.plan import Trial
from vitrail.evaluate.bench.texts import Batch, Contexts, Texts, explained_contexts, outcomes

Values = list[dict[str, Any]]
"""For each example the plain numbers that are stored of it."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What one method made of a batch.

    Args:
        scores: one per patch or token.
        classes: the explained class of each example; empty for questions and contexts.
        maps: for pictures, the patches in their places.
        pixels: for methods that work on pixels.
        others: for each example, what is shown for the other classes that a metric asks for.
        cascade: the scores of the model whose parts are randomised one after the other, with the parts' names.
        failed: for contexts, which are explained one by one, why the method has no scores of an example.
    """

    scores: Float[Tensor, "b n"]
    classes: tuple[int, ...]
    maps: Float[Tensor, "b y x"] | None = None
    pixels: Float[Tensor, "b h w"] | None = None
    others: tuple[Mapping[int, "Shown"], ...] = ()
    cascade: Sequence[tuple[str, Float[Tensor, "b n"]]] = ()
    failed: tuple[str | None, ...] = ()

    @property
    def finest(self) -> Float[Tensor, "b y x"]:
        """The map as fine as the method gives it."""
        found = self.maps if self.pixels is None else self.pixels
        assert found is not None
        return found

    @property
    def places(self) -> Float[Tensor, "b y x"]:
        """One value per patch."""
        assert self.maps is not None
        return self.maps

    def take(self, rows: Sequence[int]) -> "Shown":
        """Some of the examples."""
        some = list(rows)
        return Shown(
            self.scores[some],
            tuple(self.classes[i] for i in some) if self.classes else (),
            None if self.maps is None else self.maps[some],
            None if self.pixels is None else self.pixels[some],
            tuple(self.others[i] for i in some) if self.others else (),
            [(part, scores[some]) for part, scores in self.cascade],
            tuple(self.failed[i] for i in some) if self.failed else (),
        )


Classes = tuple[int, ...]
Further = Callable[[Batch, Classes], tuple[Classes, ...]]


def no_other(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """None."""
    return ((),) * len(batch.keys)


def neighbour(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """Another one, as AttCAT's code chooses it: the one before, 1 for class 0."""
    return tuple((c - 1 if c > 0 else 1,) for c in classes)


def rival(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """The likeliest beside the explained one; none where the model has but one class."""
    assert not isinstance(batch, Contexts)
    logits = batch.logits.clone()
    for row, c in enumerate(classes):
        logits[row, c] = -float("inf")
    return tuple((c,) if logits.shape[1] > 1 else () for c in logits.argmax(dim=1).tolist())


def of_objects(batch: Batch, classes: Classes) -> tuple[Classes, ...]:
    """One for every class of PASCAL VOC that can be seen."""
    assert isinstance(batch, Pictures)
    return tuple(() if isinstance(found, str) else tuple(found.classes.values()) for found in batch.objects)


@dataclass(frozen=True, eq=False)
class BatchRequest:
    """A batch to be explained for some classes: methods are asked for first, explain it all at once, and are then read.

    Args:
        randomised: those of the methods that also explain the model with randomised weights.
        found: what each method shows, or why it cannot.
        cascades: what it shows while the weights are randomised, or why it cannot.
    """

    batch: Batch
    classes: Classes
    trials: dict[str, Trial] = field(default_factory=dict)
    randomised: dict[str, Trial] = field(default_factory=dict)
    found: dict[str, Shown | str] = field(default_factory=dict)
    cascades: dict[str, list[tuple[str, Tensor]] | str] = field(default_factory=dict)

    def ask(self, trial: Trial, *, randomised: bool = False) -> None:
        """Ask for an explanation; the same one may be asked for often."""
        self.trials[trial_id(trial)] = trial
        if randomised:
            self.randomised[trial_id(trial)] = trial

    def make(self, settings: RunSettings) -> None:
        """Everything that was asked for."""
        self.found.update(explained(self.batch, list(self.trials.values()), self.classes, settings.preset))
        left = dict(self.randomised)
        self.cascades.update({name: [] for name in left})
        parts = metrics.randomised(self.batch.opened.loaded.model, seed=settings.seed) if left else ()
        for part, copy in parts:
            made = explained(self.batch, list(left.values()), self.classes, settings.preset, copy)
            for name, shown in made.items():
                steps = self.cascades[name]
                if isinstance(shown, Shown) and isinstance(steps, list):
                    steps.append((part, shown.scores))
                else:
                    self.cascades[name] = f"{part} randomised: {shown}"
                    del left[name]
            if not left:
                return


def explained(
    batch: Batch, trials: Sequence[Trial], classes: Classes, preset: str, model: nn.Module | None = None
) -> dict[str, Shown | str]:
    """What each method shows, or why it cannot; all from one recording if none of them fails."""
    explainer = batch.opened.explainer if model is None else RepeatedExplainer(model)
    model = batch.opened.loaded.model if model is None else model
    if isinstance(batch, Contexts):
        found = explained_contexts(batch, trials, preset, model)
        return {trial_id(trial): _rows_shown(trial, rows) for trial, rows in zip(trials, found, strict=True)}
    target = targets.answer_span() if not classes else targets.logit(classes)
    found = outcomes(explainer.compare(batch.inputs, [(t.name, t.options) for t in trials], target, preset))
    return {trial_id(trial): _shown(batch, trial, one, classes) for trial, one in zip(trials, found, strict=True)}


def _reason(trial: Trial, error: BaseException) -> str:
    return f"{trial.name}: {one_line(error)}"


def _rows_shown(trial: Trial, rows: Sequence[Tensor | Exception]) -> Shown:
    """Scores of texts of several lengths, zeros after their ends, and why some have none."""
    scores = pad_sequence([torch.zeros(1) if isinstance(one, Exception) else one for one in rows], batch_first=True)
    return Shown(scores, (), failed=tuple(_reason(trial, one) if isinstance(one, Exception) else None for one in rows))


def _shown(batch: Batch, trial: Trial, found: Attribution | VitrailError, classes: Classes) -> Shown | str:
    if isinstance(found, VitrailError):
        return _reason(trial, found)
    scores = found.scores.detach()
    if isinstance(batch, Texts):
        return Shown(scores, classes)
    if found.grid is None:
        return f"{trial.name}: {found.method} gives no grid of patches for this model."
    return Shown(scores, classes, scores.reshape(-1, *found.grid), found.pixels)


def trial_id(trial: Trial) -> str:
    """The identity of a method in a plan."""
    return f"{trial.name}{sorted(trial.options.items())}"
