"""Capture an explanation as a CUDA graph, and replay it on other inputs of the same signature.

Short inputs are bound by Python: the device waits for the host between hundreds of small kernels. A CUDA graph runs
forward pass, backward passes and relevance without Python. Inputs are copied into fixed memory, smaller batches are
padded, and the predicted class is found on the device. What Python decided while the graph was captured is checked on
the device in every replay; where it would decide otherwise for new inputs, they are explained in the ordinary way.
"""

import copy
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.api import explain
from vitrail.api.attributions import attach_metadata, attribution_of
from vitrail.api.requests import Request, read_request
from vitrail.attribution import PER_SAMPLE, Attribution
from vitrail.capture.graphs import GraphError, Replay, cuda_graph
from vitrail.capture.outputs import Scalar
from vitrail.capture.provenance import hashed, sampled_weights
from vitrail.capture.recording.forward import find_body, forward
from vitrail.capture.recording.pass_options import PLAIN, ComputeSettings
from vitrail.capture.recording.passes import Pass
from vitrail.capture.references import settings_of
from vitrail.capture.shadow import Snapshot, shadow, snapshot
from vitrail.capture.torch_private import current_transform
from vitrail.errors import InputError, TargetError, VitrailError
from vitrail.models.inputs import Inputs, read_inputs
from vitrail.models.taking import Prepared, every_module, taken
from vitrail.relevance import Result
from vitrail.relevance.dense import backends_used
from vitrail.relevance.runner import RerunMethod, Runner
from vitrail.relevance.walk import walk_events
from vitrail.targets import FORMULAS, SCALARS, Target, as_target

logger = logging.getLogger("vitrail")

Batch = Tensor | Mapping[str, Any]
RECORDERS: dict[str, Callable[[Callable[[], Any], str], Replay[Any]]] = {"cuda": cuda_graph}
"""By type of device, how a computation is captured; elsewhere inputs are explained in the ordinary way."""
MASK = "attention_mask"
"""Masks are no part of a signature: full ones are left out, because libraries ignore them."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_PRECISION_TOLERANCE = 2e-2
"""How far a replay may be from the ordinary explanation, as a share of its largest score."""
PER_CALL = {"seconds", "shared_seconds", "samples", "parts", *PER_SAMPLE}
"""Entries of the provenance that belong to one call."""
Captured = tuple[Request, Scalar, Result, Pass, set[str], tuple[bytes, list[Tensor]]]


class ExplanationGraph:
    """The explanation of inputs of one signature, as a CUDA graph where one can be captured.

    Attributes:
        target: that of the example.
        reason: why inputs are explained in the ordinary way; None if the graph is replayed.

    Args:
        model: as for `explain`.
        method: as for `explain`.
        options: the method's own options and the preset.
        settings: the other keyword arguments of `explain`.
        example: inputs of this signature with the largest batch.
        target: of the example. Where it names no class, each replay explains the predicted classes.
        given: each replay is given its classes, also if the target of the example names none.
    """

    def __init__(
        self,
        model: object,
        method: str,
        options: Mapping[str, Any],
        settings: Mapping[str, Any],
        example: Batch,
        target: Any,  # noqa: ANN401  (as for `explain`)
        *,
        given: bool = False,
    ) -> None:
        reference = explain(model, example, method, target, **settings, **options)
        self.model, self.method, self.options, self.settings = model, reference.method, options, settings
        self.target, self._given, chosen = target, given, class_target(target)
        self.predicted = not given and chosen is not None and chosen.first is None
        read = read_inputs(example)
        self.batch, self._shapes, self._plain = read.batch, shapes_of(example), settings_in(example)
        # All else, such as the texts that pictures are compared with, belongs to no one sample.
        own = {name for name, x in tensors_of(example).items() if x.shape[:1] == (read.batch,)}
        self._per_sample = frozenset(own - read.shared)
        self.reason: str | None = None
        self._graph: Replay[Captured] | None = None
        self._known: tuple[list[Tensor], str] = [], ""  # samples of the weights of the last call, and their fingerprint
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        try:
            if chosen is None:
                raise GraphError("a graph explains one class of each sample, and this target is another scalar")
            self._capture(example, reference)
        except (VitrailError, torch.OutOfMemoryError) as error:
            self._graph, self.reason = None, str(error)
            where = logger.isEnabledFor(logging.DEBUG)
            logger.info("%s is explained in the ordinary way: %s", type(taken(model)).__name__, error, exc_info=where)

    def check(self, inputs: Batch, target: object) -> None:
        """Raise an error unless inputs have this signature, masks aside, and the target is given where it should."""
        if self._given and target is None:
            raise TargetError(f"target={target!r}, but this prepared explanation needs one.")
        if not self._given and target is not None:
            own = "predicted" if self.target is None else self.target
            raise TargetError(f"target={target!r}, but this prepared explanation has the target {own!r} already.")
        shapes = shapes_of(inputs)
        count = next((x[0] for name, x in shapes.items() if name in self._per_sample and x), 0)
        same = shapes == self._shapes_for(count) and settings_in(inputs) == self._plain
        if not same or not 0 < count <= self.batch:
            wanted = self._shapes_for(f"1 to {self.batch}")
            raise InputError(f"inputs of shape {shapes}, but this explanation was prepared for {wanted}.")
        if self.has_moved():
            raise InputError("the model's weights are not where they were when this was prepared: prepare it again.")

    def _shapes_for(self, count: int | str) -> dict[str, tuple[int | str, ...]]:
        """Return the shapes of this signature for so many samples."""
        return {name: (count, *x[1:]) if name in self._per_sample else x for name, x in self._shapes.items()}

    def has_moved(self) -> bool:
        """Return True if weights of the model are no longer where the graph reads them."""
        return self._graph is not None and self._addresses != addresses_of(taken(self.model))

    def replay(self, given: Prepared, target: object) -> Attribution | None:
        """Replay the graph on inputs of this signature; return None if it does not hold for them."""
        if self._graph is None or current_transform() is not None:
            return None
        read = read_inputs(given.inputs)
        fitting = self._with_mask_as_captured(given.inputs, read.batch)
        if fitting is None or torch.is_autocast_enabled(read.shown.device.type):
            return None
        with self._lock:
            self._fill(fitting, target, read.batch)
            made = self._run(self._graph, given.inputs, read)
        if made is None:
            logger.info("a captured explanation is made in the ordinary way: these inputs lead Python elsewhere.")
            return None
        return attach_metadata(made, given, read)

    def _run(self, graph: Replay[Captured], inputs: Batch, read: Inputs) -> Attribution | None:
        """Replay the graph on the fixed memory and label the result; None if Python would decide otherwise."""
        started = time.perf_counter()
        try:
            (request, part, result, run, used, weights), agrees = graph.run()
        except GraphError:
            return None
        # While the device computes, the host looks whether the model is what it was.
        whole = read if read.batch == self.batch else read_inputs(self._padded(inputs, read.batch))
        agreed, same = torch.stack([agrees, self._same_weights(weights[1])]).tolist() if self._unchanged() else [0, 0]
        if not agreed:
            return None
        classes = tuple(self._classes.tolist())
        part = replace(part, target=Target(SCALARS[self._scalar]["logit"], classes))
        seen = copy.copy(run)
        seen.inputs = replace(whole, tokens=read.tokens)
        made = attribution_of(request, [(part, result)], seen, backends=used, dtype=run.output.wide.dtype)
        if not same:  # the weights have changed where they are
            self._known = [x.clone() for x in weights[1]], hashed(*weights)
        more = {
            "samples": read.batch,
            "seconds": time.perf_counter() - started,
            "shared_seconds": 0.0,
            "prepared": True,
            "model_hash": self._known[1],
        }
        return replace(made, provenance={**self._origin, **made.provenance, **more})[: read.batch]

    def _capture(self, example: Batch, reference: Attribution) -> None:
        """Capture the graph, and compare it with the ordinary explanation on the example and on other inputs."""
        module = taken(self.model)
        device = read_inputs(example).shown.device
        record = RECORDERS.get(device.type)
        if record is None:
            raise GraphError(f"graphs are captured on {', '.join(RECORDERS)}, and the inputs are on {device.type}")
        check_plain(example)
        if torch.is_autocast_enabled(device.type):
            raise GraphError("autocast keeps converted weights outside of the graph")
        if self.settings["memory"] == "low":
            raise GraphError("memory='low' runs blocks again, which a graph does not")
        self._static = map_tensors(without_full_mask(example), lambda x: x.detach().clone())
        self._read = read_inputs(self._static)
        self._addresses, self._state = addresses_of(module), settings_of(module)
        self._origin = {n: x for n, x in reference.provenance.items() if n not in PER_CALL}
        self._classes = torch.zeros(self.batch, dtype=torch.int64, device=device)
        self._scalar, self._class_count = self._request(first_class).plan.scalar, 0
        self._fill(without_full_mask(example), reference.target.first, self.batch)
        self._graph = record(self._compute, device.type)
        self._verify(example, reference)

    def _compute(self) -> Captured:
        """Compute everything from the fixed inputs to the scores of all tokens, and samples of the weights."""
        self._classes_known = not self.predicted
        request = self._request(self._class_score)
        plan, wanted = request.plan, request.wanted
        options = plan.pass_options if isinstance(plan, RerunMethod) else PLAIN
        settings = ComputeSettings(self.settings["backend"], self.settings["chunk_rows"], memory="full")
        with shadow(self.model) as own, backends_used() as used:
            body, lean = find_body(own, self.settings["anatomy"], self._read), not isinstance(plan, RerunMethod)
            with forward(own, request.inputs, body, wanted, settings, options, lean=lean) as run:
                (part,) = run.parts(request.target)
                if isinstance(plan, RerunMethod):
                    result = plan.explain(Runner(own, run.capture.body, request.inputs, run, part, settings))
                else:
                    (made,) = walk_events([plan], run.events(part, wanted, again=False))
                    result = made.result
                if result.reached is None:
                    result = replace(result, reached=run.reached(part))
            weights = sampled_weights(own)
        tensors = {name: x.detach() for name, x in vars(result).items() if isinstance(x, Tensor)}
        part, result = replace(part, scalar=part.scalar.detach()), replace(result, **tensors)
        return request, part, result, without_graph(run), used, weights

    def _class_score(self, logits: Tensor) -> Tensor:
        """Return the logit or probability of one class of each sample; the classes stay on the device."""
        if logits.ndim != 2:
            raise GraphError("the model answers at every token, and the position would be found by the host")
        self._class_count = logits.shape[1]
        if not self._classes_known:
            self._classes.copy_(logits.detach().argmax(dim=1))
            self._classes_known = True
        first = logits.gather(1, self._classes[:, None])[:, 0]
        return FORMULAS[SCALARS[self._scalar]["logit"]](logits, first, first)

    def _request(self, target: Callable[[Tensor], Tensor]) -> Request:
        """Return the method with its options, for the fixed inputs."""
        return read_request((self.method, self.options), "recommended", self._read, target)

    def _unchanged(self) -> bool:
        """Return True if the settings of the model are those that were captured."""
        module = taken(self.model)
        if self._snapshot is not None and self._snapshot.holds():
            return True
        same = self._state == settings_of(module)
        self._snapshot = snapshot(module, module, classes=True) if same else None
        return same

    def _same_weights(self, samples: list[Tensor]) -> Tensor:
        """Compare the weights with those of the last call, on the device."""
        device = self._classes.device
        if not self._known[0]:
            return torch.zeros((), dtype=torch.bool, device=device)
        return torch.stack([(a == b).all().to(device) for a, b in zip(samples, self._known[0], strict=True)]).all()

    def _with_mask_as_captured(self, inputs: Batch, count: int) -> Batch | None:
        """Return inputs with a mask exactly where the graph reads one; None if it reads none but they need one."""
        bare = without_full_mask(inputs)
        if isinstance(bare, Tensor) or isinstance(self._static, Tensor):
            return bare
        there, here = self._static.get(MASK), bare.get(MASK)
        if there is None:
            return bare if here is None else None
        if here is None:
            return {**bare, MASK: torch.ones_like(there[:count] if MASK in self._per_sample else there)}
        same = (there.dtype, there.shape[1:]) == (here.dtype, here.shape[1:])
        return bare if same else None  # copied into the captured mask it would be rounded, or repeated

    def _fill(self, inputs: Batch, target: object, count: int) -> None:
        """Copy inputs and classes into the fixed memory."""
        for name, x in tensors_of(self._padded(inputs, count)).items():
            tensors_of(self._static)[name].copy_(x)
        if not self.predicted:
            first = self._one_class_each(target, count)
            self._classes.copy_(torch.tensor([*first, *first[-1:] * (self.batch - count)]))

    def _padded(self, inputs: Batch, count: int) -> Batch:
        """Fill inputs up to a batch by repeating the last sample."""

        missing = self.batch - count
        if not missing:
            return inputs
        return map_tensors(inputs, lambda x: torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]), self._per_sample)

    def _one_class_each(self, target: object, count: int) -> tuple[int, ...]:
        """Return one class for each sample, of those that the model has."""
        chosen = class_target(target)
        if chosen is None or chosen.first is None:
            raise TargetError("a CUDA graph takes one class, or one for each sample, as its target.")
        if self._class_count:
            chosen = chosen.of(torch.empty(count, self._class_count))
        return (chosen.first,) * count if isinstance(chosen.first, int) else tuple(chosen.first or ())

    def _verify(self, example: Batch, reference: Attribution) -> None:
        """Raise an error unless replays give the ordinary explanation, on the example and on other inputs."""
        target = None if self.predicted else reference.target.first
        tolerance = TOLERANCES.get(next(iter(taken(self.model).parameters())).dtype, HALF_PRECISION_TOLERANCE)

        def explained(inputs: Batch, target: Any) -> Attribution:  # noqa: ANN401
            return explain(self.model, inputs, self.method, target, **self.settings, **self.options)

        # The samples in reverse order, or a single one from its end to its start.
        other = map_tensors(example, lambda x: x.flip(0) if len(x) > 1 else x.flip(x.ndim - 1))
        for inputs in (example, other):
            replayed = self.replay(Prepared(inputs), target)
            if replayed is None:
                raise GraphError("Python decides otherwise when the same inputs are explained again")
            ordinary, again = explained(inputs, target), explained(inputs, target)
            if replayed.target.first != ordinary.target.first:
                check_tie(replayed, ordinary, tolerance)
                ordinary, again = (explained(inputs, replayed.target.first) for _ in range(2))
            # Kernels that add in the order in which their parts are done give other numbers every time.
            apart, noise = largest_difference(replayed, ordinary), largest_difference(again, ordinary)
            if apart > max(tolerance, 3 * noise):
                raise GraphError(
                    f"a replay differs from the ordinary explanation by {apart:.1e} of its maximum, and two ordinary "
                    f"explanations by {noise:.1e}"
                )


def class_target(target: object) -> Target | None:
    """Return a target as the logit of one class of each sample; None if it is another scalar."""
    chosen = as_target(target)
    if isinstance(chosen, Target) and chosen.name == "logit" and chosen.position is None:
        return chosen
    return None


def first_class(logits: Tensor) -> Tensor:
    """Return the logit of the first class, where only the kind of a scalar is asked for."""
    return logits[:, 0]


def largest_difference(one: Attribution, other: Attribution) -> float:
    """Return the largest difference of scores, as a share of the largest score of the sample."""
    sizes = other.scores.abs().amax(dim=1).clamp(min=1e-30)
    return float(((one.scores - other.scores).abs().amax(dim=1) / sizes).amax())


def check_tie(replayed: Attribution, ordinary: Attribution, tolerance: float) -> None:
    """Refuse a graph that predicts another class, unless both classes are equally probable."""
    pairs = zip(replayed.provenance["probability"], ordinary.provenance["probability"], strict=True)
    if any(abs(one - other) > tolerance * max(one, other) for one, other in pairs):
        raise GraphError("a replay predicts another class than the model")


def addresses_of(module: nn.Module) -> list[int]:
    """Return where parameters and buffers lie in memory."""
    tables = (table for one in every_module(module) for table in (one._parameters, one._buffers) if table)
    return [x.data_ptr() for table in tables for x in table.values() if x is not None]


def without_graph(run: Pass) -> Pass:
    """Return a pass that is read and no more differentiated: what its backward pass needed is freed."""
    seen, output = copy.copy(run), run.output
    seen.output = replace(output, logits=output.logits.detach(), wide=output.wide.detach())
    return seen


def tensors_of(inputs: Batch) -> dict[str, Tensor]:
    """Return the tensors of inputs by name."""
    if isinstance(inputs, Tensor):
        return {"": inputs}
    return {name: x for name, x in inputs.items() if isinstance(x, Tensor)}


def shapes_of(inputs: Batch) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of inputs, masks aside."""
    return {name: tuple(x.shape) for name, x in tensors_of(inputs).items() if name != MASK}


def settings_in(inputs: Batch) -> dict[str, str]:
    """Return what inputs hold beside tensors."""
    return {} if isinstance(inputs, Tensor) else {n: repr(x) for n, x in inputs.items() if not isinstance(x, Tensor)}


def is_plain(value: object) -> bool:
    """Return True if `repr` identifies a value, which it does not for tensors, arrays and mutable objects."""
    if isinstance(value, Mapping):
        return all(is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, (list, tuple)):
        return all(is_plain(one) for one in value)
    return value is None or isinstance(value, (str, bytes, bool, int, float, torch.dtype, torch.device))


def check_plain(inputs: Batch) -> None:
    """Refuse inputs that hold, beside tensors, what later inputs cannot be compared with."""
    others = {} if isinstance(inputs, Tensor) else {n: x for n, x in inputs.items() if not isinstance(x, Tensor)}
    if unknown := [name for name, x in others.items() if not is_plain(x)]:
        raise GraphError(f"a graph would not see what changes inside of {', '.join(unknown)}")


def map_tensors(inputs: Batch, change: Callable[[Tensor], Tensor], names: Collection[str] | None = None) -> Batch:
    """Change every tensor of inputs, or those of some names; keep everything else."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    chosen = tensors_of(inputs) if names is None else names
    return {name: change(x) if isinstance(x, Tensor) and name in chosen else x for name, x in inputs.items()}


def without_full_mask(inputs: Batch) -> Batch:
    """Leave out an attention mask of ones, which libraries ignore, but not while a graph is captured."""
    if isinstance(inputs, Tensor):
        return inputs
    mask = inputs.get(MASK)
    full = isinstance(mask, Tensor) and mask.ndim == 2 and bool((mask == 1).all())
    return {name: x for name, x in inputs.items() if name != MASK or not full}
