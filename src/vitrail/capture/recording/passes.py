"""One forward pass that can be differentiated, and shown layer by layer from last to first."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vitrail.capture.outputs import UNMOVED, Output, Scalar, gradients_at, parts, size_of_gradient
from vitrail.capture.recording.continuations import continued
from vitrail.capture.recording.events import NO_TOKEN, Event
from vitrail.capture.recording.hooks import Capture
from vitrail.capture.recording.layer import Layer, Readout, own_dtypes, widen
from vitrail.capture.recording.layers import tensors_of, with_hidden_prefix
from vitrail.capture.recording.padding import FirstCall, hides_word
from vitrail.capture.recording.pass_options import ComputeSettings, Wanted
from vitrail.capture.recording.reach import named_by_mask, one_word, reach, unattended
from vitrail.capture.recording.recompute import light
from vitrail.capture.refusals import unequal
from vitrail.capture.seams import AttentionCall
from vitrail.capture.seams.call import as_heads, as_mask, call_shape, gradient_as_heads, gradient_of_map, operands_of
from vitrail.capture.structure.blocks import is_causal
from vitrail.capture.structure.measure import Structure, no_origin
from vitrail.capture.structure.streams import AttentionEvent, RowLayout
from vitrail.errors import AnatomyError, SeamError, TargetError, VitrailError
from vitrail.models.anatomy import Anatomy
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import READOUTS, by_gradient, contradicted, contradiction, normalised, position
from vitrail.targets import Target

AT_ATTENTION = ("output_grad", "query_grad")
"""Gradients that do not belong to the stream."""
MENDED = "the model's own logits are NaN, because padding may attend to nothing: such rows were given no attention"


@lru_cache(maxsize=32)
def index_on(index: tuple[int, ...], device: torch.device) -> Tensor:
    """An index on a device, where it is sent once: a copy from the host would wait for the device in every call."""
    return torch.tensor(index, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class DeferredCheck:
    """A deferred check: which samples fail it, and the error to raise.

    A question to a GPU waits until all its work is done, so those that decide nothing else are asked at the end.
    """

    wrong: Tensor
    error: Callable[[list[int]], VitrailError]


def unread(samples: list[int]) -> TargetError:
    """Return the error for a target that reads no token."""
    return TargetError(
        f"the gradient of the target is zero at every token of samples {samples}, padding aside, so nothing was read. "
        "A target that reads padding alone has nothing to explain: is the mask inverted? A probability of exactly one "
        "has no gradient: explain the logit instead."
    )


class Pass:
    """One forward pass, ready to be differentiated as often as there are scalars to explain."""

    def __init__(
        self,
        inputs: Inputs,
        capture: Capture,
        output: Output,
        settings: ComputeSettings,
        structure: Structure,
        first_call: FirstCall,
    ) -> None:
        self.inputs, self.capture, self.output, self.settings = inputs, capture, output, settings
        self.first_call = first_call
        if isinstance(structure.origin, str):
            raise no_origin(structure.origin, capture.body)
        self.structure, self.origin = structure, structure.origin
        self.captured = capture.layers
        self.depth = len(self.captured)
        # How many blocks are run again for the gradients of their attention.
        self.recomputed = 0 if capture.recomputed is None else capture.recomputed.count
        first = self.captured[0].calls[0]
        self.index = index_on(self.origin.index, output.logits.device)
        self.valid = self._valid(first)
        nowhere = torch.zeros(self.origin.tokens, dtype=torch.bool, device=self.valid.device)
        from_input = nowhere.index_fill_(0, self.index, value=True)
        said, seen = capture.body.anatomy.prefix, self.origin.prefix
        if inputs.kind == "image" and said > 0 and seen is not None and said != seen:
            raise AnatomyError(
                f"the {capture.body.anatomy.name} anatomy says that {said} tokens stand before the patches, but {seen} "
                f"of the {self.origin.tokens} tokens come from no patch. Leave prefix out, and it is measured."
            )
        # How many tokens stand before the content, of a picture as measured; and which are patches, or words after it.
        self.prefix = said if inputs.kind != "image" or seen is None else seen
        after = torch.arange(len(from_input), device=self.valid.device) >= self.prefix
        self.inside = from_input if inputs.kind == "image" else from_input & after
        queries, keys = call_shape(first)
        self.virtual = max(keys - queries, 0)  # keys that belong to no token, as prefix tuning adds them
        counted = () if self.origin.measured else ("tokens are those of the input in order",)
        # What was not measured on the model.
        self.assumed = (*structure.assumed, *counted, *((MENDED,) if output.mended else ()))
        # Whether no token sees those after it: as the anatomy says, else where no call does. Only models that answer at
        # every token are asked; calls are freed when layers are read, so it is found out now.
        self.causal = capture.body.anatomy.causal or (
            output.logits.ndim == 3 and all(is_causal(call) for captured in self.captured for call in captured.calls)
        )
        self.readout: Readout | None = None  # of the scalar that was last differentiated
        calls = [captured.calls[0] for captured in self.captured if len(captured.calls) == 1]
        known = structure.refusal is None and capture.body.pool is None and len(calls) == self.depth
        # Whether masks may keep tokens from the answer: a single layer without one lets all tokens pass.
        self.masked = known and all(x.causal or x.mask is not None or x.weights is not None for x in calls)
        self._reach: tuple[Scalar, Tensor | None] | None = None  # the tokens that reach the scalar last asked for
        self.deferred: list[DeferredCheck] = []

    def parts(self, target: Target | Callable[[Tensor], Tensor]) -> tuple[Scalar, ...]:
        """The scalars of a target on this pass's output."""
        if isinstance(target, Target) and target.name == "continuation":
            calls = [call for captured in self.captured for call in captured.calls]
            return (continued(self.output, target, self.inputs, calls),)
        return parts(self.output, target, self.valid, causal=self.output.logits.ndim == 3 and self.causal)

    def settle(self) -> None:
        """Raise if any of the readouts was wrong."""
        deferred, self.deferred = self.deferred, []
        for check in deferred:
            if bool(check.wrong.any()):
                raise check.error(check.wrong.nonzero()[:, 0].tolist())

    def _valid(self, call: AttentionCall) -> Tensor:
        """Return which tokens are real, by the attention mask that was given, or by another mask of the first layer.

        A mask speaks of the words of a text; tokens that are none are always real.
        """
        mask, index, device = self.inputs.attention_mask, self.index, self.output.logits.device
        every = torch.ones(self.inputs.batch, self.origin.tokens, dtype=torch.bool, device=device)
        if mask is None:
            plain = call.weights is None and call.mask is None
            hidden = None if plain else self._hidden(call, every)
            return every if hidden is None else ~hidden
        found = mask.bool()
        moved = found.shape[1] != every.shape[1] or self.origin.index != tuple(range(self.origin.tokens))
        return every.index_copy_(1, index, found) if moved and len(index) == found.shape[1] else found

    def _hidden(self, call: AttentionCall, every: Tensor) -> Tensor | None:
        """Return the padding where no attention mask was given; None where there is none.

        Tokens that the first layer hides from every query are padding if an argument of the model says so, or if all
        of them are the same word, which is hidden at other places too, and if the answer does not read them.
        """
        hidden, index = unattended(call, self.inputs.batch), self.index
        if hidden is None or (hidden.device.type == "cpu" and not bool(hidden.any())):
            return None
        if hidden.shape[1] > every.shape[1]:  # keys that are no tokens: which of them are is not known
            if bool(hidden.any()):
                raise SeamError(unequal(0, every.shape[1], hidden.shape[1]))
            return None
        if hidden.shape[1] != every.shape[1]:  # attention that thins out its keys says nothing of the tokens
            if hidden.shape[1] != len(index):
                return None
            hidden = torch.zeros_like(every).index_copy_(1, index, hidden)
        arguments = (*self.inputs.args, *self.inputs.kwargs.values())
        masks = [x for x in arguments if isinstance(x, Tensor) and x is not self.inputs.shown]
        words = hidden[:, index]
        said = named_by_mask(words, masks) | named_by_mask(hidden, masks)
        ids, own = self.inputs.ids, one_word(words, self.inputs.ids)
        if ids is not None and (own.device.type != "cpu" or bool((own & ~said & words.any(dim=1)).any())):
            said = said | own & hides_word(words, ids, index, call, self.first_call)
        return hidden & said[:, None] & ~self._read_by_answer(every)

    def _read_by_answer(self, every: Tensor) -> Tensor:
        """Return which tokens of the last layer any class is read from; none where there is an answer at each token."""
        logits, place = self.output.wide, self._last_place()
        if logits.ndim != 2 or place is None or not (logits.requires_grad and place.requires_grad):
            return ~every
        weights = torch.linspace(1, 2, logits.shape[1], dtype=logits.dtype, device=logits.device)
        (found,) = torch.autograd.grad(
            (logits.nan_to_num() * weights).sum(), place, retain_graph=True, allow_unused=True
        )
        tokens = None if found is None else self._by_token(found)
        return ~every if tokens is None or tokens.shape[:2] != every.shape else (tokens != 0).any(dim=2)

    def _last_place(self) -> Tensor | None:
        """Return what the last block gives, or the last attention where no block is known."""
        if self.capture.blocks:
            return self.capture.blocks[-1].states.get("leaving")
        (call,) = self.captured[-1].calls
        return call.weights if call.weights is not None else call.output

    def _by_token(self, gradient: Tensor) -> Tensor:
        """Return the gradient at what the last layer gives as `[b, t, d]`."""
        if self.capture.blocks:
            return gradient if self.capture.body.blocks[-1].batch_first else gradient.transpose(0, 1)
        heads = as_heads(gradient, self.inputs.batch)
        assert heads is not None
        return heads.transpose(1, 2).flatten(2)

    def reached(self, part: Scalar) -> Tensor | None:
        """Return the tokens that can reach a scalar by what attention lets pass; None where all can."""
        if self._reach is None or self._reach[0] is not part:
            read = self._read(part) if self.masked else None
            self._reach = (part, None if read is None else self.reached_from(read))
        return self._reach[1]

    def unmoved_by(self, parts: Iterable[Scalar]) -> set[int]:
        """Return the samples in which one of the scalars has no gradient at any token, where that can be asked."""
        found: set[int] = set()
        for part in parts:
            read = self._read(part) if part.scalar.requires_grad else None
            found |= set() if read is None else set((~read.any(dim=1)).nonzero()[:, 0].tolist())
        return found

    def reached_from(self, read: Tensor) -> Tensor | None:
        """Return the tokens that reach what is read of the last layer; None where all do."""
        return reach([captured.calls[0] for captured in self.captured], read)

    def _read(self, part: Scalar) -> Tensor | None:
        """Return the rows of the last layer that a scalar reads, by its gradient and by what is known of the model."""
        place = self._last_place()
        if place is None or not (part.scalar.requires_grad and place.requires_grad):
            return None
        scale = size_of_gradient(part, self.output.wide) if place.dtype is torch.float16 else 1.0
        scalar = part.scalar.sum() / scale
        (found,) = torch.autograd.grad(scalar, place, retain_graph=True, allow_unused=True)
        tokens = None if found is None else self._by_token(found)
        if tokens is None or tokens.shape[:2] != self.valid.shape:
            return None
        read, claimed = (tokens != 0).any(dim=2), self._claimed_readout(part)[0]
        if part.needed:  # as where a mask calls the words padding, and the padding words
            self.deferred.append(DeferredCheck(read.any(dim=1) & ~(read & self.valid).any(dim=1), unread))
        return read if claimed is None else read | (claimed > 0)

    def patches(self, x: Tensor) -> Tensor:
        """Return the values of the patches or words of the input, in their order, from values of all tokens."""
        return x[..., self.index if x.device == self.index.device else index_on(self.origin.index, x.device)]

    def among_tokens(self, x: Tensor) -> Tensor:
        """Return values of patches or words as one value for each token; other tokens get zero."""
        found = x.new_zeros(*x.shape[:-1], self.origin.tokens)
        found[..., index_on(self.origin.index, x.device)] = x
        return found

    def layers(self, part: Scalar, wanted: Wanted, *, again: bool) -> Iterator[Layer]:
        """Every layer, last to first, with the gradients of the scalar."""
        for _, layer in self.events(part, wanted, again=again):
            assert layer is not None
            yield layer

    def events(self, part: Scalar, wanted: Wanted, *, again: bool, shared: bool = False) -> Iterator[Event]:
        """Attention on all tokens of the one sequence, last to first: every layer with the gradients of the scalar.

        Args:
            again: keep the graph for another scalar.
            shared: several methods will read each layer.
        """
        if self.structure.refusal is not None:
            raise SeamError(self.structure.refusal)
        # A caller's autocast is for the model, not for the relevance algebra.
        with own_dtypes(self.valid.device.type):
            gradients, arriving, scale = self._gradients(part, wanted, again=again)
            self.readout = readout = self._readout(part, gradients[-1], needed=part.needed and bool(wanted.gradients))
            self._reach = (part, self.reached_from(readout.readout > 0) if self.masked else None)
            tokens = torch.arange(self.valid.numel()).view(self.valid.shape)
            for index in reversed(range(self.depth)):
                dropped = index < self.recomputed
                if dropped:
                    gradients[index], arriving = self._again(index, arriving, wanted, again=again)
                layer = self._layer(index, gradients[index], scale, wanted.gradients, readout, shared=shared)
                queries = NO_TOKEN if layer.pooling else tokens
                yield AttentionEvent(index, queries, tokens, RowLayout(1), in_order=True), layer
                gradients[index].clear()
                if dropped:
                    self._drop(index)
                elif not again:
                    self.captured[index].calls.clear()  # not read again

    def _again(
        self, index: int, arriving: Tensor | None, wanted: Wanted, *, again: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The gradients of a block that is run once more, and that of the stream which enters it.

        Args:
            arriving: the gradient of what the block gives.
        """
        assert self.capture.again is not None
        assert self.capture.recomputed is not None
        assert arriving is not None
        self.captured[index].calls.clear()
        entering, leaving = self.capture.again(index)
        places = self._places(index, wanted)
        tensors = [*places.values(), entering]
        found = torch.autograd.grad(leaving, tensors, arriving, allow_unused=True)
        grads = {
            name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(places.items(), found, strict=False)
        }
        if not again:
            self.capture.recomputed.arguments.pop(index + 1, None)
        return grads, torch.zeros_like(entering) if found[-1] is None else found[-1]

    def _drop(self, index: int) -> None:
        """Free what was captured of a block that is run again."""
        captured = self.captured[index]
        captured.calls[:] = [light(call) for call in captured.calls]
        captured.states.clear()
        captured.early.clear()
        captured.traced = captured.returned = None
        if index == len(self.capture.blocks) - 1:  # another scalar measures its readout by it
            assert self.capture.recomputed is not None
            assert self.capture.recomputed.leaf is not None
            captured.states["leaving"] = self.capture.recomputed.leaf

    def at_roots(self, part: Scalar) -> list[tuple[Tensor, Tensor]]:
        """Every place where the gradient ends, with the gradient of the scalar there; the graph is kept."""
        if not part.scalar.requires_grad:
            raise TargetError(UNMOVED)
        roots = self.capture.roots
        # In half precision small gradients would underflow: the pass starts at size one.
        scale = size_of_gradient(part, self.output.wide) if any(root.dtype is torch.float16 for root in roots) else 1.0
        found = torch.autograd.grad(part.scalar.sum() / scale, roots, retain_graph=True, allow_unused=True)
        if all(gradient is None for gradient in found):
            raise TargetError(UNMOVED)
        pairs = [
            (root, torch.zeros_like(root) if grad is None else grad) for root, grad in zip(roots, found, strict=True)
        ]
        return [(widen(root.detach()), widen(grad) * scale) for root, grad in pairs]

    def pull_back(self, seed: Tensor) -> Tensor:
        """Return the gradient at the one place where it ends, for a cotangent of the logits; the graph is kept."""
        (root,) = self.capture.roots
        return torch.autograd.grad(self.output.logits, root, seed, retain_graph=True)[0]

    def _gradients(
        self, part: Scalar, wanted: Wanted, *, again: bool
    ) -> tuple[list[dict[str, Tensor]], Tensor | None, Tensor | None]:
        """The gradients each layer is asked for, that of the stream where the graph begins, and what divided them."""
        if not part.scalar.requires_grad:
            raise TargetError(UNMOVED)
        places = [
            (index, name, tensor)
            for index in range(min(self.recomputed, self.depth - 1), self.depth)
            for name, tensor in self._places(index, wanted).items()
        ]
        found: list[dict[str, Tensor]] = [{} for _ in range(self.depth)]
        leaf = None if self.capture.recomputed is None else self.capture.recomputed.leaf
        if not places and leaf is None:
            return found, None, None
        tensors = [*(tensor for _, _, tensor in places), *(() if leaf is None else (leaf,))]
        gradients, scale = gradients_at(part, tensors, self.output.wide, again=again, each_sample=True)
        for (index, name, tensor), gradient in zip(places, gradients, strict=False):
            # A layer that the scalar does not depend on takes no part.
            found[index][name] = torch.zeros_like(tensor) if gradient is None else gradient
        return found, None if leaf is None else gradients[-1], scale

    def _places(self, index: int, wanted: Wanted) -> dict[str, Tensor]:
        """The tensors of one layer whose gradients are asked for, by the gradient's name."""
        (call,), states = self.captured[index].calls, self.captured[index].states
        attention = call.weights if call.weights is not None else call.output
        places = {
            "output_grad": attention,
            "query_grad": call.query,
            "entering_grad": states.get("entering"),
            "leaving_grad": states.get("leaving"),
            "attention_normed_grad": states.get("attention_normed"),
        }
        pooled = self.capture.body.pool is not None
        # A pooling attention comes after the last block, which is a last layer too.
        names = wanted.gradients if index >= self.depth - 1 - pooled or not wanted.last_only else frozenset()
        if index == self.depth - 1 and not pooled:
            names = names | ({"leaving_grad"} if self.capture.blocks else {"output_grad"})
        if pooled and index == self.depth - 1 and call.query is not None and not call.query.requires_grad:
            names = names - {"query_grad"}  # a learned query of frozen weights depends on nothing
        chosen = {name: x for name, x in places.items() if name in names and x is not None}
        return {name: x for name, x in chosen.items() if x.requires_grad}

    def _readout(self, part: Scalar, gradients: Mapping[str, Tensor], *, needed: bool) -> Readout:
        """The rows the prediction reads: measured by the gradient, and by what is known of the model if that agrees.

        Args:
            gradients: those of the last layer.
            needed: whether a gradient of zero leaves nothing to explain, whatever rows are named.
        """
        if self.capture.body.pool is not None:
            queries = call_shape(self.captured[-1].calls[0])[0]
            return Readout(torch.full((self.inputs.batch, queries), 1 / queries, device=self.valid.device), None)
        arriving = gradients["leaving_grad" if self.capture.blocks else "output_grad"]
        if not self.capture.blocks or not self.capture.body.blocks[-1].batch_first:
            arriving = self._by_token(arriving)
        if arriving.shape[:2] != self.valid.shape:
            raise SeamError(
                f"the last layer gives {tuple(arriving.shape[:2])} tokens where the first reads "
                f"{tuple(self.valid.shape)}: a model that changes the number of its tokens is not walked yet."
            )
        measured, norms = by_gradient(arriving, self.valid)
        return Readout(self._agreed(part, measured, arriving.dtype, needed=needed), norms)

    def _agreed(self, part: Scalar, measured: Tensor, dtype: torch.dtype, *, needed: bool) -> Tensor:
        """The rows at which the gradient arrives, or those that are named, if the gradient does not contradict.

        Args:
            dtype: of the gradient.
        """
        claimed, named = self._claimed_readout(part)
        empty = ~(measured > 0).any(dim=1)
        if claimed is None:
            self.deferred += [DeferredCheck(empty, unread)] if part.needed else []
            return measured
        self.deferred += [DeferredCheck(empty, unread)] if needed and dtype.itemsize >= 4 else []
        if part.position is None:
            # In half precision small gradients vanish, and so does that of a token whose probability is one.
            wrong = contradicted(claimed, measured, coarse=dtype.itemsize < 4 or part.rows is not None)
            say = lambda samples: contradiction(claimed, measured, samples[0], named=named)  # noqa: E731
            self.deferred.append(DeferredCheck(wrong, say))
            return claimed
        inside = (measured * claimed).sum(dim=1) > 0
        elsewhere = SeamError(
            f"the answer is asked for at {named}, but the gradient does not arrive at that token of the last of the "
            f"{len(self.capture.blocks)} blocks found: the model answers in another sequence of tokens than the one "
            "these blocks work on."
        )
        self.deferred.append(DeferredCheck(~(inside | empty), lambda samples: elsewhere))
        return torch.where(empty[:, None], claimed, measured)

    def _claimed_readout(self, part: Scalar) -> tuple[Tensor | None, str]:
        """The rows that the target or the anatomy names, and what names them; None if only the gradient can tell."""
        anatomy = self.capture.body.anatomy
        answers = self.output.logits.shape[1] if self.output.logits.ndim == 3 else 0  # else queries of their own answer
        if part.position is not None and answers == self.valid.shape[1]:
            return position(self.valid, part.position), f"position {part.position.tolist()}"
        if part.rows is not None and part.rows.shape == self.valid.shape:
            return part.rows, "the target"
        answered = self.capture.body.head is None or self.capture.answered(self.output.logits)
        readout = anatomy.readout if answered and part.plain else "auto"
        whose = anatomy.name if anatomy.name == Anatomy.name else f"the {anatomy.name}"
        named = f"readout={anatomy.readout!r} of {whose} anatomy"
        if isinstance(readout, int):
            if not -self.valid.shape[1] <= readout < self.valid.shape[1]:
                raise AnatomyError(f"{named} is the position of no token: there are {self.valid.shape[1]}, from 0 on.")
            return position(self.valid, readout), named
        return (READOUTS[readout](self.valid, self.valid & self.inside) if readout in READOUTS else None), named

    @property
    def content(self) -> Tensor:
        """The real patches, or the real words of a text after its prefix."""
        return self.valid & self.inside

    def readout_position(self) -> Tensor | None:
        """The one position each sample was last read from, -1 where there are several; None for a pooling query."""
        if self.readout is None or self.capture.body.pool is not None:
            return None
        rows = self.readout.readout
        places = torch.full((self.origin.tokens,), -1, device=self.valid.device)
        places[index_on(self.origin.index, places.device)] = torch.arange(len(self.index), device=self.valid.device)
        return torch.where(rows.amax(dim=1) == 1, places[rows.argmax(dim=1)], -1)

    def _layer(
        self,
        index: int,
        gradients: Mapping[str, Tensor],
        scale: Tensor | None,
        asked: frozenset[str],
        read: Readout,
        *,
        shared: bool,
    ) -> Layer:
        """A layer as methods read it; of the gradients of the stream, those that were asked for."""
        captured, (call,) = self.captured[index], self.captured[index].calls
        queries, keys = call_shape(call)
        body, batch = self.capture.body, self.inputs.batch
        pooling = body.pool is not None and index == self.depth - 1
        hidden = self.valid.shape[1] - keys if pooling else 0  # tokens that a pooling query does not read
        if (not pooling and queries != keys) or hidden not in (0, self.prefix):
            raise SeamError(unequal(index, queries, keys))
        # The readout in the precision that the call was computed in, at least in float32.
        computed = call.query if call.weights is None else call.weights
        dtype = torch.promote_types(torch.float32 if computed is None else computed.dtype, torch.float32)
        # Below a pooling query every token is read.
        rows = normalised(self.valid) if body.pool is not None and not pooling else read.readout
        if rows.shape[1] != queries:
            raise SeamError(f"the readout has no row in attention layer {index}, which has {queries} queries.")
        moved = {name: x for name, x in gradients.items() if name in asked and name not in AT_ATTENTION}
        gradient, of_query = gradients.get("output_grad"), gradients.get("query_grad")
        by_hand = call.weights if gradient is not None else None
        bare = not moved and self.capture.keep.issubset(AT_ATTENTION)  # no states are kept
        if bare and not call.no_query and body.loose is None:
            held = operands_of(call, batch, as_heads, None if call.mask is None else as_mask(call.mask, batch))
        else:
            held = tensors_of(self.capture, index, batch, moved)
        layer = Layer(
            index=index,
            depth=self.depth,
            valid=self.valid,
            readout=rows.to(dtype),
            readout_norms=None if read.readout_norms is None else read.readout_norms.to(dtype),
            prefix=self.prefix,
            from_input=self.inside,
            kind=self.inputs.kind,
            owner=call.owner,
            pooling=pooling,
            pooled=body.pool is not None,
            query_grad=None if of_query is None else gradient_as_heads(of_query, call.query, batch),
            output_grad=as_heads(gradient, batch) if call.weights is None else None,
            weights_grad=None if gradient is None or by_hand is None else gradient_of_map(gradient, by_hand, batch),
            grad_scale=scale,
            **held,
            early=captured.early,
            backend=self.settings.backend,
            chunk_rows=self.settings.chunk_rows,
            shared=shared,
        )
        return with_hidden_prefix(layer, hidden) if hidden else layer
