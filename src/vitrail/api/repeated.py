"""Record explanations of repeated input shapes as CUDA graphs, for long-running programs.

`VITRAIL_RECORD=0` in the environment switches recording off. While a graph is recorded, other threads of the process go
on, but none of them may free the device's cached memory (`torch.cuda.empty_cache`).
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from vitrail.api import compare, explain, preparing
from vitrail.api.preparing import MASK, Batch, first_class, is_plain, settings_in, tensors_of
from vitrail.api.requests import read_request
from vitrail.attribution import Attribution, Comparison
from vitrail.errors import VitrailError
from vitrail.models.inputs import read_inputs
from vitrail.relevance import LayerReader, Walk
from vitrail.relevance.runner import RerunMethod
from vitrail.targets import AnyTarget, Target, as_target

logger = logging.getLogger("vitrail")

PAYS = 3
"""How often inputs of one form are explained in the ordinary way before a recording is made, which costs a dozen."""
MOST_RECORDINGS = 8
"""How many are kept for one model; each holds the memory of its passes."""
MOST_FORMS = 4096
"""How many forms of inputs are counted."""
SETTING = "VITRAIL_RECORD"
"""The variable of the environment that switches recording off, by `0`."""


class RepeatedExplainer:
    """Explains what comes one after the other, by a recording where inputs of one form come again and again.

    For programs that run on, such as the page and the bench. Results are those of `explain`. Where nothing is recorded
    (recording is off, no CUDA, a target that is no class, options that are no plain values, code that a graph cannot
    hold), they are made in the ordinary way.

    Args:
        record: whether to record at all; None asks the environment.
    """

    def __init__(self, model: object, *, record: bool | None = None) -> None:
        self.model = model
        self.record = os.environ.get(SETTING) != "0" if record is None else record
        self._seen: Counter[Hashable] = Counter()
        self._made: dict[Hashable, preparing.PreparedExplainer] = {}
        self._lock = threading.Lock()

    def __call__(self, inputs: Batch, method: str, target: AnyTarget, preset: str, **options: Any) -> Attribution:  # noqa: ANN401
        """Explain one batch; arguments as for `explain`."""
        form = self._form(inputs, method, target, preset, options)
        with self._lock:
            if form in self._made and not self._made[form].holds():
                del self._made[form]  # recorded again below
            if len(self._seen) > MOST_FORMS:
                self._seen.clear()
            self._seen[form] += form is not None
            if form is not None and form not in self._made and self._seen[form] > PAYS and has_room(inputs):
                while len(self._made) >= MOST_RECORDINGS:
                    self._made.pop(next(iter(self._made)))
                self._made[form] = preparing.prepare(self.model, inputs, method, "given", preset=preset, **options)
            made = self._made.get(form)
        if made is not None and made.reason is None:
            return made(inputs, target)
        return explain(self.model, inputs, method, target, preset, **options)

    def compare(
        self, inputs: Batch, specs: Sequence[tuple[str, Mapping[str, Any]]], target: AnyTarget, preset: str
    ) -> Comparison:
        """Several methods as by `compare`, errors kept; those that share a pass share it."""
        records = self.record and device_of(inputs) in preparing.RECORDERS
        alone = self._alone(inputs, specs, preset) if records else []
        rest = [place for place in range(len(specs)) if place not in alone]
        made: dict[int, Attribution] = {}
        failed: dict[int, VitrailError] = {}
        if rest:
            found = compare(self.model, inputs, [specs[place] for place in rest], target, preset, on_error="keep")
            failed |= {rest[place]: error for place, error in found.failed.items()}
            made |= dict(zip((place for place in rest if place not in failed), found, strict=True))
        for place in alone:
            try:
                name, options = specs[place]
                made[place] = self(inputs, name, target, **{"preset": preset, **options})
            except VitrailError as error:
                failed[place] = error
        return Comparison([made[place] for place in sorted(made)], failed)

    def _alone(self, inputs: Batch, specs: Sequence[tuple[str, Mapping[str, Any]]], preset: str) -> list[int]:
        """The indices of methods that make their own passes, or have no other method to share one with."""
        read, plans = read_inputs(inputs), dict[int, Walk | LayerReader | RerunMethod]()
        for place, spec in enumerate(specs):
            with suppress(VitrailError):  # told by `compare`
                plans[place] = read_request(spec, preset, read, first_class).plan
        readers = [place for place, plan in plans.items() if not isinstance(plan, RerunMethod)]
        return [place for place in plans if place not in readers or len(readers) == 1]

    def _form(
        self, inputs: Batch, method: str, target: AnyTarget, preset: str, options: Mapping[str, Any]
    ) -> Hashable | None:
        """What one recording is for; None where nothing is recorded."""
        chosen = as_target(target)
        if not isinstance(chosen, Target) or chosen.name != "logit" or chosen.first is None:
            return None
        if not self.record or chosen.position is not None or device_of(inputs) not in preparing.RECORDERS:
            return None
        if not is_plain(options):
            return None
        shapes = tuple(
            (name, tuple(x.shape), x.dtype, x.device) for name, x in tensors_of(inputs).items() if name != MASK
        )
        return method, preset, repr(sorted(options.items())), shapes, tuple(settings_in(inputs).items())


def has_room(inputs: Batch) -> bool:
    """Whether half of the device's memory is free: recordings keep theirs, and others need some too."""
    if device_of(inputs) != "cuda":
        return True
    free, total = torch.cuda.mem_get_info(next(iter(tensors_of(inputs).values())).device)
    if 2 * free < total:
        logger.info("nothing more is recorded: less than half of the memory of the device is free.")
    return 2 * free >= total


def device_of(inputs: Batch) -> str:
    """The type of device that inputs are on."""
    return next((x.device.type for x in tensors_of(inputs).values()), "cpu")
