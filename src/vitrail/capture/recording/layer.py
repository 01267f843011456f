"""The recording of one pass of a model: plain tensors, no model, no graph.

Axes: b batch, h head, g key/value head, q query position, k key position, t token, d channel.
"""

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.capture.seams.call import allowed_keys
from vitrail.errors import MissingTensorError

Probs = Float[Tensor, "b h q k"]
T = TypeVar("T")


@dataclass(frozen=True)
class Stream:
    """The residual stream around one block, and what its sub-layers read and add."""

    entering: Float[Tensor, "b t d"] | None = None
    entering_grad: Float[Tensor, "b t d"] | None = None
    leaving: Float[Tensor, "b t d"] | None = None
    leaving_grad: Float[Tensor, "b t d"] | None = None
    attention_normed: Float[Tensor, "b t d"] | None = None
    attention_normed_grad: Float[Tensor, "b t d"] | None = None
    ffn_entering: Float[Tensor, "b t d"] | None = None
    ffn_normed: Float[Tensor, "b t d"] | None = None
    ffn_added: Float[Tensor, "b t d"] | None = None


@dataclass(frozen=True)
class Layer:
    """One attention layer of one pass, with everything methods may read of it.

    `probs` and `probs_grad` are computed from the operands when first read. All properties are float32, or float64 in a
    float64 model, whatever the model's own dtype.

    Args:
        index, depth: which layer it is, and of how many.
        valid: the tokens that are no padding.
        readout: the rows the prediction is read from, as weights that sum to one.
        readout_norms: the same rows, weighed by the norms of the gradients that arrive there.
        prefix, from_input: how many tokens stand before the content; the tokens that are content, if not all after it.
        owner: the name of the module that made the attention call.
        pooling, pooled: whether its query pools the tokens; whether any layer of the model does.
        cross: whether its queries may be other tokens than its keys.
        attends, feeds_forward: which sub-layers of a block it holds.
        weights, softmax_input: the map and the scores of attention that the model writes out itself (`by_hand`).
        mask: what may be seen, or what is added to the scores; broadcasts to `[b, h, q, k]`.
        first_row: the place of the first query, where only some are shown.
        logsumexp: the logarithm of the softmax's denominator, as the model's own kernel left it.
        plain: whether scores are `scale * query @ key^T`, plus at most a bias or mask.
        grad_scale: what all gradients were divided by.
        output_weight: from the heads' outputs to what is added to the stream, but for the two that follow.
        output_rows: what a norm after the output projection multiplies each query's row by.
        attention_scale, ffn_scale: layer scale.
        stream: states of the residual stream and their gradients.
        backend, chunk_rows, shared: how sums over its maps are computed, and whether several methods read it.
        missing: why something is not known, by its name.
        early: what was read of it as soon as it had run.
    """

    index: int
    depth: int
    valid: Bool[Tensor, "b t"]
    readout: Float[Tensor, "b q"]
    readout_norms: Float[Tensor, "b q"] | None = None
    prefix: int = 0
    from_input: Bool[Tensor, " t"] | None = None
    kind: str = "image"
    owner: str = ""
    pooling: bool = False
    pooled: bool = False
    cross: bool = False
    attends: bool = True
    feeds_forward: bool = True
    query: Float[Tensor, "b h q d"] | None = None
    query_grad: Float[Tensor, "b h q d"] | None = None
    key: Float[Tensor, "b g k d"] | None = None
    value: Float[Tensor, "b g k e"] | None = None
    output: Float[Tensor, "b h q e"] | None = None
    output_grad: Float[Tensor, "b h q e"] | None = None
    weights: Probs | None = None
    weights_grad: Probs | None = None
    softmax_input: Probs | None = None
    mask: Tensor | None = None
    causal: bool = False
    first_row: int = 0
    logsumexp: Float[Tensor, "b h q"] | None = None
    scale: float = 1.0
    by_hand: bool = False
    plain: bool = True
    grad_scale: Float[Tensor, " b"] | None = None
    output_weight: Float[Tensor, "m c"] | None = None
    output_rows: Float[Tensor, "b q"] | None = None
    value_bias: Float[Tensor, " n"] | None = None
    attention_scale: Float[Tensor, " m"] | None = None
    ffn_scale: Float[Tensor, " m"] | None = None
    stream: Stream = field(default_factory=Stream)
    backend: str = "dense"
    chunk_rows: int | None = None
    shared: bool = False
    missing: Mapping[str, str] = field(default_factory=dict, compare=False)
    early: dict[Any, Any] = field(default_factory=dict, compare=False)

    @property
    def is_last(self) -> bool:
        """Return True if this is the attention closest to the prediction."""
        return self.index == self.depth - 1

    @property
    def queries_valid(self) -> Bool[Tensor, "b q"]:
        """The queries that are real: all of a pooling layer's and of a cross-attention's, else the real tokens."""
        return torch.ones_like(self.readout, dtype=torch.bool) if self.pooling or self.cross else self.valid

    @property
    def every_query(self) -> Float[Tensor, "b q"]:
        """Equal weights over the real queries, summing to one."""
        weights = self.queries_valid.to(self.readout.dtype)
        return weights / weights.sum(dim=1, keepdim=True)

    @property
    def content(self) -> Bool[Tensor, "b t"]:
        """The real tokens without the prefix: patches, or words."""
        after = torch.arange(self.valid.shape[1], device=self.valid.device) >= self.prefix
        return self.valid & (after if self.from_input is None else self.from_input)

    @cached_property
    def keys(self) -> Float[Tensor, "b h k d"]:
        """The keys, those of a shared head repeated for each of its query heads."""
        return self._per_head("key")

    @cached_property
    def values(self) -> Float[Tensor, "b h k e"]:
        """The values, those of a shared head repeated for each of its query heads."""
        return self._per_head("value")

    @cached_property
    def probs(self) -> Probs:
        """A, the attention after the softmax; rows that may see nothing are zero."""
        if self.weights is not None:
            return widen(self.weights)
        probs = self._scores().softmax(dim=-1)
        if self.allowed is not None:
            # A row with every key masked is 0/0; torch's own kernels give zeros there.
            probs.masked_fill_(~self.allowed.any(dim=-1, keepdim=True), 0.0)
        return probs

    @cached_property
    def scores(self) -> Probs:
        """S, what enters the softmax: scaled products of queries and keys, mask and bias added."""
        if self.softmax_input is None and not self.by_hand:
            return self._scores()
        return widen(self.get("softmax_input"))  # masks and biases that the model adds itself are not known

    @cached_property
    def probs_grad(self) -> Probs:
        """G = ds/dA: what the output's gradient gives each value it could have drawn on."""
        if self.weights_grad is not None:
            return self._unscale(self.weights_grad)
        return self._unscale(self.get("output_grad")) @ self._per_head("value").transpose(-1, -2)

    @cached_property
    def allowed(self) -> Bool[Tensor, "..."] | None:
        """The keys that each query may see by mask and order, broadcasting to `[b, h, q, k]`; None if all."""
        if self.mask is None and not self.causal:
            return None
        size, device = (self.get("query").shape[2], self.get("key").shape[2]), self.valid.device
        found = allowed_keys(self.mask, size, causal=self.causal, device=device, first_row=self.first_row)
        return None if found is None else found[(None,) * (4 - found.ndim)]

    @property
    def visible(self) -> Bool[Tensor, "..."] | None:
        """The keys that each query may see, broadcasting to `[b, h, q, k]`; None if all."""
        return self.allowed if self.weights is None else self.weights != 0

    def remember(self, name: Hashable, find: Callable[[], T]) -> T:
        """Return what a function finds of this layer, found once for each name."""
        held = vars(self).setdefault("_remembered", {})  # a changed copy of the layer does not take it along
        if name not in held:
            held[name] = find()
        return held[name]

    def get(self, name: str) -> Tensor:
        """A recorded tensor, or an error that names it."""
        found = getattr(self, name)
        if found is None:
            self.check_known(name)
            held = [n for n, x in vars(self).items() if isinstance(x, Tensor)]
            raise MissingTensorError(
                f"this method reads {name!r} of attention layer {self.index}, but the recording holds only "
                f"{', '.join(held)}. Hand-written attention and unknown anatomies cannot give every tensor; "
                "record again with keep={...}, or name the part in vitrail.Anatomy(...)."
            )
        return found

    def check_known(self, name: str) -> None:
        """Raise if something was not recorded for a reason that is known."""
        if name in self.missing:
            raise MissingTensorError(
                f"this method reads {name!r} of attention layer {self.index}, which is not known there: "
                f"{self.missing[name]}. Take a method that reads attention maps only, such as gae."
            )

    def gradient(self, name: str) -> Tensor:
        """A recorded gradient in its true size, or an error that names it."""
        return self._unscale(self.get(name))

    def state(self, name: str) -> Float[Tensor, "b t d"]:
        """A recorded state of the residual stream, or an error that names it."""
        found = getattr(self.stream, name)
        if found is None:
            self.check_known(name)
            raise MissingTensorError(
                f"this method reads the state {name!r} of block {self.index}, which was not recorded. Name the "
                "blocks and their parts in vitrail.Anatomy(blocks=..., ffn_input=..., ffn_output=...)."
            )
        return self._unscale(found) if name.endswith("_grad") else widen(found)

    def carry(self, relevance: Float[Tensor, "b q"]) -> Float[Tensor, "b k"]:
        """Return the part that the skip connection carries past this layer: all, or nothing if a query pools tokens."""
        return torch.zeros_like(self.valid, dtype=relevance.dtype) if self.pooling else relevance

    def rows(self, start: int, stop: int) -> "Layer":
        """The same layer, seen by some of its queries only."""
        cut = slice(start, stop)
        outer = {name: x[:, cut] for name in PER_QUERY if (x := getattr(self, name)) is not None}
        inner = {name: x for name in PER_HEAD if (x := getattr(self, name)) is not None}
        # Masks may have one row that stands for all.
        inner = {name: x[:, :, cut] if x.shape[2] > 1 else x for name, x in inner.items()}
        return replace(self, first_row=self.first_row + start, backend="dense", **outer, **inner)

    def samples(self, start: int, stop: int) -> "Layer":
        """The same attention of some samples only; the residual stream does not come along."""
        cut = slice(start, stop)
        tensors = {name: x for name, x in vars(self).items() if name in PER_SAMPLE and x is not None}
        # A mask may have one entry that stands for all.
        held = {name: x if name == "mask" and x.shape[0] == 1 else x[cut] for name, x in tensors.items()}
        return replace(self, stream=Stream(), **held)

    def _scores(self) -> Tensor:
        scores = (widen(self.get("query")) * self.scale) @ self._per_head("key").transpose(-1, -2)
        if self.mask is not None and self.mask.is_floating_point():
            scores += widen(self.mask)
        if self.allowed is not None:
            scores.masked_fill_(~self.allowed, -torch.inf)
        return scores

    def _per_head(self, name: str) -> Tensor:
        """Keys or values, those of a shared head repeated for each of its query heads."""
        x = self.get(name)
        heads = x.shape[1] if self.query is None else self.query.shape[1]
        return widen(x) if x.shape[1] == heads else widen(x).repeat_interleave(heads // x.shape[1], dim=1)

    def _unscale(self, gradient: Tensor) -> Tensor:
        if self.grad_scale is None:
            return widen(gradient)
        return widen(gradient) * self.grad_scale.view(-1, *[1] * (gradient.ndim - 1))


PER_QUERY = ("readout", "readout_norms", "output_rows")
MAPS = ("weights", "weights_grad", "softmax_input", "mask")
PER_HEAD = ("query", "query_grad", "output", "output_grad", "logsumexp", *MAPS)
PER_SAMPLE = (*PER_QUERY, *PER_HEAD, "key", "value", "valid", "grad_scale")
"""Names of tensors of a layer by their axes: `[b, q]`, `[b, h, q, ...]`, and all that begin with the batch."""


@dataclass(frozen=True)
class Readout:
    """The tokens that a scalar is read from, as weights that sum to one for each sample and sequence.

    Args:
        readout: equal weights.
        readout_norms: weights by the norms of the gradients that arrive; None where they are not known.
    """

    readout: Tensor
    readout_norms: Tensor | None = None

    def to(self, like: Tensor) -> "Readout":
        """Return the same weights in the precision and on the device of a tensor."""
        norms = None if self.readout_norms is None else self.readout_norms.to(like)
        return Readout(self.readout.to(like), norms)


@dataclass(frozen=True)
class Recording:
    """All layers of one pass, first to last, and what the model answered."""

    layers: tuple[Layer, ...]
    logits: Tensor
    scalar: Float[Tensor, " b"]

    def __repr__(self) -> str:
        """One line."""
        return f"Recording({len(self.layers)} layers, logits {list(self.logits.shape)})"


def widen(x: Tensor) -> Tensor:
    """The tensor in the dtype of the relevance algebra: float64 stays, all else becomes float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def own_dtypes(device: str) -> AbstractContextManager[object]:
    """Switch autocast off, if it is on: a caller's autocast is for the model, not for the relevance algebra."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
