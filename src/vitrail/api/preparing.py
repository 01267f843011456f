"""Explain many inputs of one shape: on CUDA, the whole explanation as one graph that is replayed.

Short inputs are bound by Python: the device waits for the host between hundreds of small kernels. A prepared
explanation runs forward pass, backward passes and relevance as one CUDA graph. Inputs are copied into fixed memory,
smaller batches are padded, and the predicted class is found on the device. What Python decides on the way is checked
on the device in every replay; where it would decide otherwise for new inputs, they are explained in the ordinary way.
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
from vitrail.attribution import Attribution
from vitrail.capture.forward import find_body, forward
from vitrail.capture.graphs import GraphError, Replay, cuda_graph
from vitrail.capture.outputs import Scalar
from vitrail.capture.pass_options import PLAIN, ComputeSettings
from vitrail.capture.passes import Pass
from vitrail.capture.provenance import hashed, sampled_weights
from vitrail.capture.references import settings_of
from vitrail.capture.shadow import Snapshot, shadow, snapshot
from vitrail.errors import InputError, OptionError, TargetError, VitrailError
from vitrail.methods import DEFAULT_METHOD
from vitrail.models.anatomy import Anatomy
from vitrail.models.inputs import Inputs, read_inputs
from vitrail.models.taking import every_module, taken
from vitrail.models.taking import prepared as as_given
from vitrail.relevance import Result
from vitrail.relevance.dense import backends_used
from vitrail.relevance.runner import RerunMethod, Runner
from vitrail.relevance.walk import Events, walk_events
from vitrail.targets import FORMULAS, SCALARS, Target, as_target

Batch = Tensor | Mapping[str, Any]
Record = Callable[[Callable[[], Any], str], Replay[Any]]
RECORDERS: dict[str, Record] = {"cuda": cuda_graph}
"""By type of device, how an explanation is recorded; elsewhere inputs are explained in the ordinary way."""
TARGETS = ("predicted", "given")
MASK = "attention_mask"
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-4}
ROUGH = 2e-2
"""How far a replay may be from the ordinary explanation, as a share of its largest score: half precision last."""

logger = logging.getLogger("vitrail")


class ClassOnDevice:
    """The logit or the probability of one class of each sample; the class stays on the device.

    Args:
        classes: fixed memory for the classes.
        predicted: find them in the first logits of each computation; else they are given.
    """

    def __init__(self, classes: Tensor, *, scalar: str, predicted: bool) -> None:
        self.classes, self.scalar, self.predicted = classes, scalar, predicted
        self.known, self.count = not predicted, 0

    def start(self) -> None:
        """Begin a new computation."""
        self.known = not self.predicted

    def __call__(self, logits: Tensor) -> Tensor:
        """One value for each sample."""
        if logits.ndim != 2:
            raise GraphError("the model answers at every token, and the position would be found by the host")
        self.count = logits.shape[1]
        if not self.known:
            self.classes.copy_(logits.detach().argmax(dim=1))
            self.known = True
        first = logits.gather(1, self.classes[:, None])[:, 0]
        return FORMULAS[SCALARS[self.scalar]["logit"]](logits, first, first)


class PreparedExplainer:
    """A callable that explains inputs of the shape it was made for, and gives what `explain` gives.

    `reason` says why inputs are explained in the ordinary way, or is None where a graph is replayed.
    """

    def __init__(self, model: object, example: Batch, method: str, options: Mapping[str, Any], target: object) -> None:
        self.model, self.method, self.options, self.target = model, method, dict(options), target
        self.example = _changed(example, torch.empty_like)
        read = read_inputs(example)
        self.batch = read.batch
        # All else, such as the texts that pictures are compared with, belongs to no one sample.
        own = {name for name, x in tensors_of(example).items() if x.shape[:1] == (read.batch,)}
        self._per_sample = frozenset(own - read.shared)
        self.reason: str | None = None
        self._replay: Replay[Any] | None = None
        self._known: tuple[list[Tensor], str] = [], ""  # samples of the weights of the last call, and their fingerprint
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()

    def __call__(self, inputs: Any, target: object = None) -> Attribution:  # noqa: ANN401  (see `models.taking`)
        """Explain inputs of the prepared shape.

        Args:
            inputs: as for `explain`: tensors, or what a model that brings its preprocessing takes.
            target: one class, or one for each sample, where the targets are given.
        """
        given = as_given(self.model, inputs)
        self._check(given.inputs, target)
        chosen = self.target if self.target not in TARGETS else target
        if self._replay is not None:
            with self._lock:
                read = read_inputs(given.inputs)
                found = self._replayed(given.inputs, read, chosen)
            if found is not None:
                return attach_metadata(found, given, read)
            logger.info("a prepared explanation is made in the ordinary way: these inputs lead Python elsewhere.")
        return explain(self.model, inputs, self.method, chosen, **self.options)  # pyright: ignore[reportArgumentType]

    def holds(self) -> bool:
        """Whether the model's weights are where they were when this was prepared."""
        return self._replay is None or self._weights == _addresses(taken(self.model))

    def takes(self, inputs: Batch) -> bool:
        """Whether inputs have the prepared shape, masks aside."""
        here, there = self._shapes(inputs), self._shapes(self.example)
        counts = {here[name][:1] for name in self._per_sample & here.keys()}
        if settings_in(inputs) != settings_in(self.example) or here.keys() != there.keys() or len(counts) != 1:
            return False
        (count,) = counts.pop() or (0,)
        wanted = {name: (count, *x[1:]) if name in self._per_sample else x for name, x in there.items()}
        return 0 < count <= self.batch and here == wanted

    def _shapes(self, inputs: Batch) -> dict[str, tuple[int, ...]]:
        return {name: tuple(x.shape) for name, x in tensors_of(inputs).items() if name != MASK}

    def _check(self, inputs: Batch, target: object) -> None:
        """Refuse inputs of another shape, and targets that are missing or not asked for."""
        if (self.target == "given") != (target is not None):
            needed = "needs one" if self.target == "given" else f"has the target {self.target!r} already"
            raise TargetError(f"target={target!r}, but this prepared explanation {needed}.")
        if not self.takes(inputs):
            wanted = {
                name: (f"1 to {self.batch}", *shape[1:]) if name in self._per_sample else shape
                for name, shape in self._shapes(self.example).items()
            }
            raise InputError(f"inputs of shape {self._shapes(inputs)}, but this explanation was prepared for {wanted}.")

    def record(self, example: Batch, record: Record, anatomy: Anatomy | None, reference: Attribution) -> None:
        """Record the explanation, and check it against the ordinary one on the example and on other inputs."""
        module = taken(self.model)
        device = read_inputs(example).shown.device
        _check_plain(example)
        if torch.is_autocast_enabled(device.type):
            raise GraphError("autocast keeps converted weights outside of the graph")
        self._static = _changed(_without_full_mask(example), lambda x: x.detach().clone())
        self._read = read_inputs(self._static)
        self._weights, self._state = _addresses(module), settings_of(module)
        self._origin = {n: x for n, x in reference.provenance.items() if n not in PER_CALL}
        classes = torch.zeros(self.batch, dtype=torch.int64, device=device)
        predicted, scalar = self.target == "predicted", self._request(first_class).plan.scalar
        self._classes = ClassOnDevice(classes, scalar=scalar, predicted=predicted)
        self._fill(_without_full_mask(example), None if predicted else reference.target.first, self.batch)
        self._replay = record(lambda: self._compute(anatomy), device.type)
        self._verify(example, reference)

    def _compute(self, anatomy: Anatomy | None) -> "Computed":
        """Everything from the fixed inputs to the scores of all tokens, and what the weights are known by."""
        self._classes.start()
        request, settings = self._request(self._classes), ComputeSettings(memory="full")
        plan, wanted = request.plan, request.wanted
        options = plan.pass_options if isinstance(plan, RerunMethod) else PLAIN
        with shadow(self.model) as own, backends_used() as used:
            body, lean = find_body(own, anatomy, self._read), not isinstance(plan, RerunMethod)
            with forward(own, request.inputs, body, wanted, settings, options, lean=lean) as run:
                (part,) = run.parts(request.target)
                if isinstance(plan, RerunMethod):
                    result = plan.explain(Runner(own, run.capture.body, request.inputs, run, part, settings))
                else:
                    (made,) = walk_events([plan], Events(run.events(part, wanted, again=False)))
                    result = made.result
                if result.reached is None:
                    result = replace(result, reached=run.reached(part))
            weights = sampled_weights(own)
        part, result = replace(part, scalar=part.scalar.detach()), _detached(result)
        return request, part, result, _without_graph(run), used, weights

    def _request(self, target: Callable[[Tensor], Tensor]) -> Request:
        given = {name: value for name, value in self.options.items() if name != "anatomy"}
        return read_request((self.method, given), "recommended", self._read, target)

    def _replayed(self, inputs: Batch, read: Inputs, target: object) -> Attribution | None:
        """The explanation of these inputs by the recording; None where it does not hold for them."""
        started = time.perf_counter()
        if not self.holds():
            raise InputError("the model's weights are not where they were when this was prepared: prepare it again.")
        fitting = self._fitting(inputs, read.batch)
        if fitting is None or torch.is_autocast_enabled(read.shown.device.type):
            return None
        self._fill(fitting, target, read.batch)
        assert self._replay is not None
        try:
            (request, part, result, run, used, weights), agrees = self._replay.run()
        except GraphError:
            return None
        # While the device computes, the host looks whether the model is what it was.
        whole = read if read.batch == self.batch else read_inputs(self._padded(inputs))
        agreed, same = torch.stack([agrees, self._same_weights(weights[1])]).tolist() if self._unchanged() else [0, 0]
        if not agreed:
            return None
        classes = tuple(self._classes.classes.tolist())
        part = replace(part, target=Target(SCALARS[request.plan.scalar]["logit"], classes))
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
        return _first(replace(made, provenance={**self._origin, **made.provenance, **more}), read.batch)

    def _unchanged(self) -> bool:
        """Whether the settings of the model are those that were recorded."""
        module = taken(self.model)
        if self._snapshot is not None and self._snapshot.holds():
            return True
        same = self._state == settings_of(module)
        self._snapshot = snapshot(module, module, classes=True) if same else None
        return same

    def _same_weights(self, samples: list[Tensor]) -> Tensor:
        """On the device, whether the weights are those of the last call."""
        device = self._classes.classes.device
        if not self._known[0]:
            return torch.zeros((), dtype=torch.bool, device=device)
        return torch.stack([(a == b).all().to(device) for a, b in zip(samples, self._known[0], strict=True)]).all()

    def _fitting(self, inputs: Batch, count: int) -> Batch | None:
        """Inputs with a mask exactly where the recording has one; None where the recording has none but needs one."""
        bare = _without_full_mask(inputs)
        if isinstance(bare, Tensor) or isinstance(self._static, Tensor):
            return bare
        there, here = self._static.get(MASK), bare.get(MASK)
        if there is None:
            return bare if here is None else None
        if here is None:
            return {**bare, MASK: torch.ones_like(there[:count] if MASK in self._per_sample else there)}
        same = (there.dtype, there.shape[1:]) == (here.dtype, here.shape[1:])
        return bare if same else None  # copied into the recorded mask it would be rounded, or repeated

    def _fill(self, inputs: Batch, target: object, count: int) -> None:
        """Copy inputs and targets into the fixed memory."""
        for name, x in tensors_of(self._padded(inputs)).items():
            tensors_of(self._static)[name].copy_(x)
        if target is not None:
            first = self._chosen(target, count)
            self._classes.classes.copy_(torch.tensor([*first, *first[-1:] * (self.batch - count)]))

    def _padded(self, inputs: Batch) -> Batch:
        """Inputs filled up to a batch by repeating the last sample."""

        def filled(x: Tensor) -> Tensor:
            return x if len(x) == self.batch else torch.cat([x, x[-1:].expand(self.batch - len(x), *x.shape[1:])])

        return _changed(inputs, filled, self._per_sample)

    def _chosen(self, target: object, count: int) -> tuple[int, ...]:
        """One class for each sample, of those that the model has."""
        given = as_target(target)
        if not isinstance(given, Target) or given.name != "logit" or given.first is None:
            raise TargetError("a recording takes one class, or one for each sample, as its target.")
        if self._classes.count:
            given = given.of(torch.empty(count, self._classes.count))
        return (given.first,) * count if isinstance(given.first, int) else tuple(given.first or ())

    def _verify(self, example: Batch, reference: Attribution) -> None:
        """Drop the recording unless it gives the ordinary explanation, on the example and on other inputs."""
        target = None if self.target == "predicted" else reference.target.first
        allowed = CLOSE.get(next(iter(taken(self.model).parameters())).dtype, ROUGH)
        for inputs in (example, _other(example)):
            replayed = self._replayed(inputs, read_inputs(inputs), target)
            if replayed is None:
                raise GraphError("Python decides otherwise when the same inputs are explained again")
            ordinary, again = (explain(self.model, inputs, self.method, target, **self.options) for _ in range(2))
            if replayed.target.first != ordinary.target.first:
                _check_tie(replayed, ordinary, allowed)
                ordinary, again = (
                    explain(self.model, inputs, self.method, replayed.target.first, **self.options) for _ in range(2)
                )
            # Kernels that add in the order in which their parts are done give other numbers every time.
            apart, noise = _apart(replayed, ordinary), _apart(again, ordinary)
            if apart > max(allowed, 3 * noise):
                raise GraphError(
                    f"a replay differs from the ordinary explanation by {apart:.1e} of its maximum, and two ordinary "
                    f"explanations by {noise:.1e}"
                )


def _apart(one: Attribution, other: Attribution) -> float:
    """The largest difference of scores, as a share of the largest score of the sample."""
    sizes = other.scores.abs().amax(dim=1).clamp(min=1e-30)
    return float(((one.scores - other.scores).abs().amax(dim=1) / sizes).amax())


def _check_tie(replayed: Attribution, ordinary: Attribution, allowed: float) -> None:
    """Refuse a recording that predicts another class, unless both classes are equally probable."""
    pairs = zip(replayed.provenance["probability"], ordinary.provenance["probability"], strict=True)
    if any(abs(one - other) > allowed * max(one, other) for one, other in pairs):
        raise GraphError("a replay predicts another class than the model")


Computed = tuple[Request, Scalar, Result, Pass, set[str], tuple[bytes, list[Tensor]]]
PER_SAMPLE = ("residual", "disagreement", "probability")
PER_CALL = {"seconds", "shared_seconds", "samples", "parts", "classes", *PER_SAMPLE}
"""What of the provenance belongs to one call."""


def prepare(
    model: object,
    example: Any,  # noqa: ANN401  (see `vitrail.models.taking`)
    method: str = DEFAULT_METHOD,
    target: object = "predicted",
    *,
    anatomy: Anatomy | None = None,
    **options: Any,  # noqa: ANN401
) -> PreparedExplainer:
    """A callable that explains inputs of one shape; on CUDA as a graph, many times faster for short inputs.

    Args:
        model: as for `explain`. Its weights may change in place, but not move.
        example: inputs of the shape and the largest batch to be explained.
        method: a name of `vitrail.METHODS`, or `auto`.
        target: `predicted`, `given` (then each call is given its classes), or one class for all.
        anatomy: where the model's parts are, if it is of no known family.
        **options: the method's own options and `preset`, as for `explain`.
    """
    if isinstance(target, str) and target not in TARGETS:
        raise OptionError(f"target={target!r} is not a choice. Known: predicted, given, or the index of a class.")
    first = None if isinstance(target, str) else target
    asked = {} if anatomy is None else {"anatomy": anatomy}
    example = as_given(model, example).inputs
    reference = explain(model, example, method, first, **asked, **options)  # pyright: ignore[reportArgumentType]
    preset = options.pop("preset", "recommended")
    chosen = {**options, **asked, "preset": preset}
    prepared = PreparedExplainer(model, example, reference.method, chosen, target)
    device = read_inputs(example).shown.device.type
    record = RECORDERS.get(device)
    try:
        if record is None:
            raise GraphError(f"graphs are recorded on {', '.join(RECORDERS)}, and the inputs are on {device}")
        prepared.record(example, record, anatomy, reference)
    except (VitrailError, torch.OutOfMemoryError) as error:
        prepared._replay, prepared.reason = None, str(error)
        where = logger.isEnabledFor(logging.DEBUG)
        logger.info("%s is explained in the ordinary way: %s", type(taken(model)).__name__, error, exc_info=where)
    return prepared


def _addresses(module: nn.Module) -> list[int]:
    """Where the weights are, and what else the modules hold as buffers."""
    tables = (table for one in every_module(module) for table in (one._parameters, one._buffers) if table)
    return [x.data_ptr() for table in tables for x in table.values() if x is not None]


def first_class(logits: Tensor) -> Tensor:
    """The logit of the first class, where a scalar is only asked for its kind."""
    return logits[:, 0]


def _detached(result: Result) -> Result:
    """A result whose tensors keep nothing else alive."""
    return replace(result, **{name: x.detach() for name, x in vars(result).items() if isinstance(x, Tensor)})


def _without_graph(run: Pass) -> Pass:
    """A pass that is read and no more differentiated: what its backward pass needed is freed."""
    seen, output = copy.copy(run), run.output
    seen.output = replace(output, logits=output.logits.detach(), wide=output.wide.detach())
    return seen


def tensors_of(inputs: Batch) -> dict[str, Tensor]:
    """The tensors of inputs by name."""
    if isinstance(inputs, Tensor):
        return {"": inputs}
    return {name: x for name, x in inputs.items() if isinstance(x, Tensor)}


def is_plain(value: object) -> bool:
    """Whether `repr` identifies a value, which it does not for tensors, arrays and mutable objects."""
    if isinstance(value, Mapping):
        return all(is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, (list, tuple)):
        return all(is_plain(one) for one in value)
    return value is None or isinstance(value, (str, bytes, bool, int, float, torch.dtype, torch.device))


def _check_plain(inputs: Batch) -> None:
    """Refuse to record inputs that hold, beside tensors, what later inputs cannot be compared with."""
    others = {} if isinstance(inputs, Tensor) else {n: x for n, x in inputs.items() if not isinstance(x, Tensor)}
    if unknown := [name for name, x in others.items() if not is_plain(x)]:
        raise GraphError(f"a graph would not see what changes inside of {', '.join(unknown)}")


def settings_in(inputs: Batch) -> dict[str, str]:
    """What inputs hold beside tensors."""
    return {} if isinstance(inputs, Tensor) else {n: repr(x) for n, x in inputs.items() if not isinstance(x, Tensor)}


def _changed(inputs: Batch, change: Callable[[Tensor], Tensor], names: Collection[str] | None = None) -> Batch:
    """Inputs with every tensor changed, or those of some names; what else they hold stays."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    chosen = tensors_of(inputs) if names is None else names
    return {name: change(x) if isinstance(x, Tensor) and name in chosen else x for name, x in inputs.items()}


def _without_full_mask(inputs: Batch) -> Batch:
    """Inputs without an attention mask of ones, which libraries ignore, but not while a graph is recorded."""
    if isinstance(inputs, Tensor):
        return inputs
    mask = inputs.get(MASK)
    full = isinstance(mask, Tensor) and mask.ndim == 2 and bool((mask == 1).all())
    return {name: x for name, x in inputs.items() if name != MASK or not full}


def _other(inputs: Batch) -> Batch:
    """Other inputs of the same kind: the samples in reverse order, or a single one from its end to its start."""
    return _changed(inputs, lambda x: x.flip(0) if len(x) > 1 else x.flip(x.ndim - 1))


def _first(attribution: Attribution, count: int) -> Attribution:
    """The first samples of an attribution."""
    cut = {name: x[:count] for name, x in vars(attribution).items() if isinstance(x, Tensor)}
    tokens = None if attribution.tokens is None else attribution.tokens[:count]
    classes = attribution.target.first
    target = replace(attribution.target, first=classes[:count] if isinstance(classes, tuple) else classes)
    lists = {n: x[:count] for n in PER_SAMPLE if (x := attribution.provenance.get(n)) is not None}
    return replace(attribution, **cut, tokens=tokens, target=target, provenance={**attribution.provenance, **lists})
