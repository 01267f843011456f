"""One explainer for many inputs: those of a signature that comes again and again are explained by a CUDA graph.

A signature is the shapes, types and settings of inputs. `VITRAIL_RECORD=0` in the environment switches capturing off.
While a graph is captured, other threads of the process go on, but none of them may free the device's cached memory
(`torch.cuda.empty_cache`).
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from vitrail.api import compare, explain
from vitrail.api.cuda_replay import (
    MASK,
    RECORDERS,
    Batch,
    ExplanationGraph,
    class_target,
    first_class,
    is_plain,
    settings_in,
    tensors_of,
)
from vitrail.api.requests import MethodLike, MethodSpec, read_request
from vitrail.attribution import Attribution, Comparison
from vitrail.errors import OptionError, VitrailError
from vitrail.methods import DEFAULT_METHOD, METHODS
from vitrail.models.anatomy import Anatomy
from vitrail.models.inputs import read_inputs
from vitrail.models.taking import named_target, prepared
from vitrail.relevance.runner import RerunMethod
from vitrail.targets import AnyTarget

logger = logging.getLogger("vitrail")

CALLS_BEFORE_CAPTURE = 3
"""Calls with the same signature before a CUDA graph is captured. Capturing costs about twelve calls."""
MOST_GRAPHS = 8
"""Graphs that one explainer keeps; each holds the memory of its passes."""
MOST_SIGNATURES = 4096
"""Signatures that are counted."""
SWITCH = "VITRAIL_RECORD"
"""The environment variable that switches capturing off, by `0`."""
TARGETS = ("predicted", "given")
"""What `prepare` explains: the predicted classes, or those that each call is given."""


class Explainer:
    """Explain inputs of one model by one method, one batch after the other.

    A call gives what `vitrail.explain` gives. On CUDA, inputs whose shapes and settings were seen three times are then
    explained by a CUDA graph, which is many times faster for short inputs. Where a graph does not hold (another target
    than a class, options that are no plain values, code that a graph cannot hold, autocast), inputs are explained in
    the ordinary way. Several threads may share an explainer.

    Attributes:
        reason: why the signature that was captured last is explained in the ordinary way; None if it is replayed, or
            if none was captured.

    Args:
        model: as for `explain`. Its weights may change between calls.
        method: a name of `vitrail.METHODS`, or `auto`.
        preset: `paper`, `official` or `recommended`.
        anatomy: where the model's parts are, if it is of no known family.
        backend: `dense`, `chunked`, `fused` (CUDA) or `auto`.
        chunk_rows: rows of attention held at a time by the chunked backend.
        memory: as for `explain`; a graph keeps what every block computed.
        **options: the method's own options.

    Example:
        >>> import torch, vitrail
        >>> explainer = vitrail.Explainer("photo", "gae")
        >>> batches = torch.randn(2, 4, 3, 160, 160)
        >>> [tuple(explainer(batch).scores.shape) for batch in batches]
        [(4, 256), (4, 256)]
    """

    def __init__(
        self,
        model: object,
        method: MethodLike = DEFAULT_METHOD,
        preset: str = "recommended",
        *,
        anatomy: Anatomy | None = None,
        backend: str = "auto",
        chunk_rows: int | None = None,
        memory: str = "auto",
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.model, self.method = model, method
        self.options = {"preset": preset, **options}
        self.settings = {"anatomy": anatomy, "backend": backend, "chunk_rows": chunk_rows, "memory": memory}
        self.reason: str | None = None
        self._captures = os.environ.get(SWITCH) != "0"
        self._seen: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, ExplanationGraph] = {}
        self._prepared: ExplanationGraph | None = None
        self._lock = threading.Lock()

    def __call__(self, inputs: Any, target: AnyTarget = None) -> Attribution:  # noqa: ANN401  (see `models.taking`)
        """Explain one batch.

        Args:
            inputs: as for `explain`.
            target: as for `explain`.

        Returns:
            What `vitrail.explain` gives, to rounding where a CUDA graph computes it.

        Raises:
            VitrailError: as `vitrail.explain` does.
        """
        given = prepared(self.model, inputs)
        target = named_target(given, target)
        if self._prepared is None:
            graph = self._graph_for(given.inputs, self.method, self.options, target)
        else:
            graph = self._prepared
            graph.check(given.inputs, target)
            target = target if graph.target is None else graph.target
        found = None if graph is None else graph.replay(given, target)
        if found is None:
            found = explain(self.model, given, self.method, target, **self.settings, **self.options)
        return found

    def compare(
        self,
        inputs: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
        methods: Sequence[MethodSpec] | MethodLike,
        target: AnyTarget = None,
    ) -> Comparison:
        """Explain one batch by other methods; those that read the same pass share it.

        Args:
            inputs: as for `explain`.
            methods: names, or pairs of a name and options. The explainer's preset is theirs unless an option `preset`
                names another one. Its anatomy, backend and memory hold for all of them, its other options for none.
            target: as for `explain`.

        Returns:
            What `vitrail.compare(..., on_error="keep")` gives: `failed` holds the errors of methods by their position.

        Raises:
            VitrailError: if the inputs cannot be read, or no method is named.

        Example:
            >>> import torch, vitrail
            >>> explainer = vitrail.Explainer("photo")
            >>> found = explainer.compare(torch.randn(1, 3, 160, 160), ["gae", "input_x_gradient", "rolout"])
            >>> [one.method for one in found], list(found.failed)
            (['gae', 'input_x_gradient'], [2])
        """
        given, preset = prepared(self.model, inputs), self.options["preset"]
        target = named_target(given, target)
        specs = list(methods) if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
        made: dict[int, Attribution] = {}
        failed: dict[int, VitrailError] = {}
        for place in self._alone(given.inputs, specs):
            name, options = spec if isinstance(spec := specs[place], tuple) else (spec, {})
            with suppress(VitrailError):  # found again below
                graph = self._graph_for(given.inputs, name, {"preset": preset, **options}, target)
                if graph is not None and (replayed := graph.replay(given, target)) is not None:
                    made[place] = replayed
        rest = [place for place in range(len(specs)) if place not in made]
        if rest or not specs:
            left = [specs[place] for place in rest]
            others = compare(self.model, given, left, target, preset, on_error="keep", **self.settings)
            found = iter(others)
            for number, place in enumerate(rest):
                if number in others.failed:
                    failed[place] = others.failed[number]
                else:
                    made[place] = next(found)
        return Comparison([made[place] for place in sorted(made)], failed)

    def _graph_for(
        self, inputs: Batch, method: MethodLike, options: Mapping[str, Any], target: AnyTarget
    ) -> ExplanationGraph | None:
        """Return the graph of a signature, captured if the signature was seen often enough; none of own methods."""
        if not isinstance(method, str) or method.partition("(")[0] not in (DEFAULT_METHOD, *METHODS.built_in):
            return None
        signature = self._signature(inputs, method, options, target)
        if signature is None:
            return None
        with self._lock:
            known = self._graphs.get(signature)
            if known is not None and not known.has_moved():
                return known
            self._graphs.pop(signature, None)
            if len(self._seen) > MOST_SIGNATURES:
                self._seen.clear()
            self._seen[signature] += 1
            if self._seen[signature] <= CALLS_BEFORE_CAPTURE or not has_room(inputs):
                return None
            while len(self._graphs) >= MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            graph = ExplanationGraph(self.model, method, options, self.settings, inputs, target)
            self._graphs[signature], self.reason = graph, graph.reason
            return graph

    def _signature(self, inputs: Batch, method: str, options: Mapping[str, Any], target: AnyTarget) -> Hashable | None:
        """Return the key of a graph for these inputs; None where none is captured."""
        if not self._captures or device_of(inputs) not in RECORDERS or not is_plain(options):
            return None
        chosen = class_target(target)
        if chosen is None:
            return None
        shapes = [(name, tuple(x.shape), x.dtype, x.device) for name, x in tensors_of(inputs).items() if name != MASK]
        predicted = chosen.first is None
        return method, repr(sorted(options.items())), predicted, tuple(shapes), tuple(settings_in(inputs).items())

    def _alone(self, inputs: Batch, specs: Sequence[MethodSpec]) -> list[int]:
        """Return the places of methods that make their own passes, or have no other method to share one with."""
        if not self._captures or device_of(inputs) not in RECORDERS:
            return []
        read = read_inputs(inputs)
        own_pass, readers = list[int](), list[int]()
        for place, spec in enumerate(specs):
            with suppress(VitrailError):  # told by `compare`
                plan = read_request(spec, self.options["preset"], read, first_class).plan
                (own_pass if isinstance(plan, RerunMethod) else readers).append(place)
        return own_pass if len(readers) > 1 else sorted(own_pass + readers)


def prepare(
    model: object,
    example: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    method: str = DEFAULT_METHOD,
    target: Any = "predicted",  # noqa: ANN401
    *,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> Explainer:
    """Return an explainer for inputs of one shape; on CUDA its graph is captured at once.

    Its `reason` says why inputs are explained in the ordinary way, or is None where the graph is replayed.

    Args:
        model: as for `explain`. Its weights may change in place, but not move.
        example: inputs of the shape and the largest batch to be explained.
        method: a name of `vitrail.METHODS`, or `auto`.
        target: `predicted`, `given` (then each call is given its classes), or one target for all calls.
        anatomy: where the model's parts are, if it is of no known family.
        **options: the method's own options and `preset`, as for `explain`.

    Returns:
        An explainer that refuses inputs of other shapes, and targets that it was not prepared for.

    Raises:
        VitrailError: where `vitrail.explain` cannot explain the example.

    Example:
        >>> import torch, vitrail
        >>> explainer = vitrail.prepare("photo", torch.randn(8, 3, 160, 160), "gae")
        >>> explainer(torch.randn(5, 3, 160, 160)).scores.shape
        torch.Size([5, 256])
    """
    if isinstance(target, str) and target not in TARGETS:
        raise OptionError(f"target={target!r} is not a choice. Known: predicted, given, or the index of a class.")
    explainer, inputs = Explainer(model, method, anatomy=anatomy, **options), prepared(model, example).inputs
    own, given = (None, target == "given") if isinstance(target, str) else (target, False)
    graph = ExplanationGraph(model, method, explainer.options, explainer.settings, inputs, own, given=given)
    explainer._prepared, explainer.reason = graph, graph.reason
    return explainer


def has_room(inputs: Batch) -> bool:
    """Return True if half of the device's memory is free: graphs keep theirs, and others need some too."""
    if device_of(inputs) != "cuda":
        return True
    free, total = torch.cuda.mem_get_info(next(iter(tensors_of(inputs).values())).device)
    if 2 * free < total:
        logger.info("no more graphs are captured: less than half of the memory of the device is free.")
    return 2 * free >= total


def device_of(inputs: Batch) -> str:
    """Return the type of device that inputs are on."""
    return next((x.device.type for x in tensors_of(inputs).values()), "cpu")
