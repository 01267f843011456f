"""One forward pass of a model with several streams, differentiated, and handed out event by event."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from vitrail.capture.graph_nodes import start_graph
from vitrail.capture.outputs import UNMOVED, Scalar, gradients_at, run_model
from vitrail.capture.recording.answers import StreamAnswer, read_answer
from vitrail.capture.recording.events import Event, Events
from vitrail.capture.recording.layer import Layer, Readout, Stream, own_dtypes
from vitrail.capture.recording.pass_options import ComputeSettings, Wanted
from vitrail.capture.refusals import check_differentiable, check_model
from vitrail.capture.seams import AttentionCall, attention_calls
from vitrail.capture.seams.call import call_dtype, operands_of, tensors_in
from vitrail.capture.shadow import autograd, hooks, once
from vitrail.capture.structure.readouts import shared_among
from vitrail.capture.structure.stream_checks import StreamsOfPass
from vitrail.capture.structure.stream_updates import ReadPass, StreamUpdates
from vitrail.capture.structure.streams import AttentionEvent, Transition
from vitrail.capture.structure.taps import SUMS, Tap, Tapped, WatchSums
from vitrail.capture.structure.token_codes import call_result
from vitrail.capture.structure.trace import TracedCall, rooted
from vitrail.capture.torch_private import writes_to
from vitrail.errors import SeamError, TargetError
from vitrail.models.inputs import Inputs
from vitrail.models.taking import every_module, generates
from vitrail.targets import Target


class UnknownReadout(Exception):
    """The gradient of a pass does not tell which tokens a scalar reads: a pass whose results are cut has to."""


@dataclass(frozen=True, eq=False)
class PlainPass:
    """One forward pass with its graph, before it is known which tokens its attention calls are on."""

    inputs: Inputs
    roots: list[Tensor]  # where the graph begins
    calls: list[AttentionCall]
    output: object
    answer: StreamAnswer
    results: list[tuple[TracedCall, int]]  # what each call gave, with its version then
    tapped: Tapped

    def at_taps(self, taps: Sequence[Tap | None]) -> ReadPass | None:
        """Return the tensors that are read off at some places; None if one is not as it was there any more."""
        tensors, calls = self.tapped.read(taps), [one for one, _ in self.results]
        kept = all(one.output is not None and writes_to(one.output) == version for one, version in self.results)
        if tensors is None or not kept or len(calls) != len(self.calls):
            return None
        return ReadPass(calls, tensors, self.tapped.modules)


@dataclass(eq=False)
class StreamPass:
    """One forward pass with its graph, ready to be differentiated as often as there are scalars to explain.

    Args:
        found: the tokens of its calls.
        updates: how its layers transform tokens, where a method asks for it.
        unknown: why that is not known, where it is asked for and not known.
        starts: by the identity of a target, which tokens its scalars read, where a pass whose results are cut told it.
        norms: whether a method shares relevance by norms of gradients.
        read: by the identity of a scalar, the tokens that it reads.
    """

    plain: PlainPass
    found: StreamsOfPass
    settings: ComputeSettings
    updates: StreamUpdates | None = None
    unknown: SeamError | None = None
    starts: Mapping[int, list[Readout]] = field(default_factory=dict)
    norms: bool = False
    read: dict[int, Readout] = field(default_factory=dict)

    @property
    def masked(self) -> bool:
        """Return True if masks may keep tokens from the answer."""
        return any(call.weights is not None or call.mask is not None or call.causal for call in self.plain.calls)

    def parts(self, target: Target | Callable[[Tensor], Tensor]) -> tuple[Scalar, ...]:
        """Return the scalars of a target on this pass's output."""
        found = self.plain.answer.scalars(target)
        for part, start in zip(found, self.starts.get(id(target), ()), strict=False):
            self.read[id(part)] = start
        return found

    def events(self, part: Scalar, wanted: Wanted, *, again: bool, shared: bool = False) -> Events:
        """Return what happens to tokens, last to first, with the gradients of the scalar, and where the walk begins.

        Args:
            again: keep the graph for another scalar.
            shared: several methods will read each layer.
        """
        gradients, scale = self._gradients(part, wanted, again=again)
        if id(part) not in self.read:
            self.read[id(part)] = self._read_off(gradients)
        wide = self.plain.answer.output.wide
        return Events(
            self._steps(gradients if wanted.gradients else None, scale, shared=shared),
            readout=self.read[id(part)].to(wide),
            lengths=None if self.updates is None else self.updates.lengths.nan_to_num(0.0).to(wide),
            crosses=any(not torch.equal(event.queries, event.keys) for event in self.found.streams.attentions),
        )

    def _gradients(self, part: Scalar, wanted: Wanted, *, again: bool) -> tuple[list[Tensor | None], float]:
        """Return the gradient at what each attention call gave, None where none arrives, and what divided them."""
        asked: Collection[int] = range(len(self.plain.calls))
        if not wanted.gradients:  # only to see what is read
            last = None if id(part) in self.read else self.found.last_calls
            asked = () if last is None else last[last >= 0].unique().tolist()
        places = {i: x for i in asked if (x := call_result(self.plain.calls[i])) is not None and x.requires_grad}
        if not asked:
            return [None] * len(self.plain.calls), 1.0
        if not places:
            raise TargetError(UNMOVED)
        logits = self.plain.answer.output.wide
        found, scale = gradients_at(part, list(places.values()), logits, again=again, each_sample=False)
        every = dict(zip(places, found, strict=True))
        return [every.get(i) for i in range(len(self.plain.calls))], 1.0 if scale is None else float(scale[0])

    def _read_off(self, gradients: Sequence[Tensor | None]) -> Readout:
        """Return the tokens that a scalar reads, by its gradient at their last attention.

        That does not tell where it reads other sequences than all that an answer may read: tokens that these are made
        of may have a gradient of theirs.
        """
        last, of = self.found.last_calls, self.found.streams.sequence_of
        if last is None:
            raise UnknownReadout
        calls = set(last[last >= 0].tolist())
        norms = torch.zeros(self.found.streams.count, dtype=torch.float64)
        for event in self.found.streams.attentions:
            gradient = gradients[event.call]
            if event.call not in calls or gradient is None:
                continue
            squares = event.rows.four(gradient).double().square().sum(dim=(1, 3)).cpu()
            here = torch.zeros_like(norms).index_add(0, event.queries.flatten(), squares.flatten()).sqrt()
            norms = torch.where(last == event.call, here, norms)
        read = (last >= 0) & (norms > 0)
        by_hand = any(self.plain.calls[call].weights is not None for call in calls)
        others = set(of[read].tolist()) != set(of[last >= 0].tolist())
        if others or not bool(read.any()) or (by_hand and self.norms):
            raise UnknownReadout
        equal = shared_among(self.found.streams, self.found.samples, read, None)
        return Readout(equal, None if by_hand else shared_among(self.found.streams, self.found.samples, read, norms))

    def _steps(self, gradients: list[Tensor | None] | None, scale: float, *, shared: bool) -> Iterator[Event]:
        """Every event, last to first, with its layer; None for gradients where no method reads any."""
        arrives: list[Tensor | None] = [None] * len(self.plain.calls) if gradients is None else list(gradients)
        with own_dtypes(self.plain.answer.output.logits.device.type):
            for event in reversed(self.found.streams.events):
                if isinstance(event, Transition):
                    yield event, None
                    continue
                yield from self._feed_forward(event.call, arrives, needed=gradients is not None)
                if gradients is None or arrives[event.call] is not None:  # else it takes no part
                    layer = self._layer(event, arrives[event.call], scale, shared=shared)
                    yield event, self._updating(event, layer)
                    arrives[event.call] = None

    def _feed_forward(self, call: int, gradients: list[Tensor | None], *, needed: bool) -> Iterator[Event]:
        """The feed-forward layers between an attention call and the next one, last to first."""
        if self.updates is None:
            return
        for one, update in reversed([layer for layer in self.updates.layers if layer[0].after == call + 1]):
            if not needed or any(gradients[number] is not None for number in one.calls):
                valid = (one.tokens >= 0) & self.updates.real[one.tokens.clamp(min=0)]
                states = Stream(ffn_entering=update.state, ffn_added=update.added)
                assert update.state is not None
                start = torch.zeros(valid.shape, dtype=update.state.dtype, device=update.state.device)
                held = {"stream": states, "attends": False}
                yield one, Layer(call, len(self.plain.calls), valid.to(start.device), start, **held)

    def _updating(self, event: AttentionEvent, layer: Layer) -> Layer:
        """The layer with what it adds to its stream, where a method asks for that."""
        if self.updates is None or event.call in self.updates.pools:
            return layer
        if event.call not in self.updates.calls:
            raise SeamError(
                f"the answer has a gradient at attention call {event.call + 1}, but was not found to be made of it, so "
                "what the call adds is not known. Take a method that reads attention maps only, such as gae."
            )
        update, device = self.updates.calls[event.call], layer.valid.device
        assert update.weight is not None
        assert update.places is not None
        valid = layer.valid & (self.updates.real[event.keys] & (update.places >= 0)).to(device)
        if (visible := layer.visible) is not None:
            valid = valid & visible.any(dim=2).any(dim=1)
        return replace(
            layer,
            valid=valid,
            output_weight=update.weight.to(device),
            output_rows=None if update.rows is None else update.rows.to(device),
            stream=Stream(entering=update.entering().to(device)),
        )

    def _layer(self, event: AttentionEvent, gradient: Tensor | None, scale: float, *, shared: bool) -> Layer:
        """Return the layer of an attention call, with the gradient of what it gave."""
        call, rows = self.plain.calls[event.call], event.rows
        count, queries, keys = event.queries.shape[0], event.queries.shape[1], event.keys.shape[1]
        device = self.plain.answer.output.logits.device
        grad = None if gradient is None else rows.four(gradient)
        # Keys and values of nn.MultiheadAttention have as many heads as queries; grouped ones have an axis of heads.
        mask = None if call.mask is None else rows.four_of_mask(call.mask.detach())
        return Layer(
            index=event.call,
            depth=len(self.plain.calls),
            valid=torch.ones(count, keys, dtype=torch.bool, device=device),
            readout=torch.zeros(
                count, queries, dtype=torch.promote_types(call_dtype(call), torch.float32), device=device
            ),
            owner=call.owner,
            cross=True,
            feeds_forward=False,
            **operands_of(call, count, lambda x, _: rows.four(x.detach()), mask),
            output_grad=grad if call.weights is None else None,
            weights_grad=grad if call.weights is not None else None,
            grad_scale=None if scale == 1.0 else torch.full((count,), scale, device=device),
            backend=self.settings.backend,
            chunk_rows=self.settings.chunk_rows,
            shared=shared,
        )


@contextmanager
def stream_forward(
    model: nn.Module, inputs: Inputs, taps: Collection[Tap] = (), attending: Collection[int] = ()
) -> Iterator[PlainPass]:
    """Run a shadow once and keep the operands of every attention call.

    Args:
        taps: which tensors of modules are kept beside, so that it can be read what layers add to the streams.
        attending: the numbers of the modules that make all attention calls; none where that is not known.
    """
    check_model(model)
    check_differentiable(model)
    calls: list[AttentionCall] = []
    results: list[tuple[TracedCall, int]] = []
    tapped = Tapped(every_module(model) if taps or attending else (), taps)

    def keep(out: Tensor, order: tuple[int, ...]) -> Tensor:
        results.append((TracedCall(calls[-1], out, order), writes_to(out)))
        return out

    with autograd(gradients=True):
        some = rooted(inputs)
        handles = [module.register_forward_hook(_start) for module in once(model, "starts", partial(_starting, model))]
        handles += tapped.hooks() if taps else []
        places, cut = [tapped.modules[number] for number in attending], keep if taps else None
        adding = WatchSums(calls)
        watching = adding if any(tap.module == SUMS for tap in taps) else nullcontext()
        with hooks(handles), watching, attention_calls(calls.append, safe=True, cut=cut, within=places):
            output = run_model(model, some)
        tapped.add_sums(adding.sums)
        read = read_answer(output, inputs, calls, generates=generates(model))
        roots = [x for x in tensors_in((some.args, some.kwargs)) if x.requires_grad]
        yield PlainPass(inputs, roots, calls, output, read, results, tapped)


def _starting(model: nn.Module) -> list[nn.Module]:
    """Return the modules at whose results the graph may begin: what trained weights make is in it already."""
    held = [(module, [x for x in module._parameters.values() if x is not None]) for module in every_module(model)]
    weighing = [(module, own) for module, own in held if own or isinstance(module, nn.Embedding)]
    return [module for module, own in weighing if not own or not all(x.requires_grad for x in own)]


def _start(module: nn.Module, args: tuple, out: object) -> None:
    first = next(iter(out), None) if isinstance(out, (tuple, list)) else out
    if isinstance(first, Tensor) and first.is_floating_point():
        start_graph(module, first)
