"""From the capture of a block to the tensors of a `Layer`, after the pass or as soon as the block has run.

A method that reads states of a block can take what it needs when the block has run (`Early`), so that the states
need not be kept until the walk.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.recording.layer import Layer, Stream, own_dtypes
from vitrail.capture.refusals import unequal
from vitrail.capture.seams.call import AttentionCall, as_heads, as_mask, call_shape, operands_of
from vitrail.capture.structure.projections import at_zero, is_plain, width_of
from vitrail.capture.structure.tokens import batch_first
from vitrail.capture.structure.updates import BlockUpdates, missing_in
from vitrail.capture.torch_private import without_functions
from vitrail.errors import SeamError, VitrailError
from vitrail.models.anatomy import Block

if TYPE_CHECKING:
    from vitrail.capture.recording.hooks import Capture


UNKNOWN_BIAS = (
    "the values are not numbers that one module of the block gives as they are, so its bias is not known; name it in "
    "vitrail.Anatomy(value_bias=...), or leave value_bias=False out"
)


STATES = tuple(Stream.__dataclass_fields__)


def weights_of(
    block: Block | None,
    updates: BlockUpdates | None,
    call: AttentionCall,
    *,
    states: Mapping[str, Tensor],
    loose: str | None = None,
) -> dict[str, Any]:
    """The weights of a block that methods read, as measured where that was asked for.

    Args:
        states: what was kept of the stream around the block.
        loose: why no module is a block, where that is so.
    """
    missing: dict[str, str] = dict.fromkeys(("query", "query_grad", "key"), call.no_query) if call.no_query else {}
    if loose is not None:
        missing = {**missing, **dict.fromkeys((*STATES, "output_weight"), loose)}
    if block is None or updates is None:
        return {"missing": missing}
    attention, ffn = updates
    found = {
        "output_weight": attention.weight,
        "output_rows": attention.rows,
        "value_bias": value_bias(block, call),
        "attention_scale": attention.scale,
        "ffn_scale": ffn.scale,
    }
    weights = {name: None if x is None else x.detach() for name, x in found.items()}
    unknown = {"value_bias": UNKNOWN_BIAS} if block.discovered and block.value is None else {}
    return {**weights, "missing": {**missing, **unknown, **of_other_shape(states), **missing_in(updates)}}


def of_other_shape(states: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the states inside a block that do not belong to the stream that enters it, each with the reason.

    MobileBERT narrows the stream. Blocks may be given tokens first and work on samples first.
    """
    entering = states.get("entering")
    if entering is None:
        return {}
    return {
        name: f"it has the shape {tuple(x.shape)} in a block that {tuple(entering.shape)} enter"
        for name, x in states.items()
        if x.ndim == entering.ndim and (x.shape[-1] != entering.shape[-1] or _turned(x, entering))
    }


def _turned(x: Tensor, entering: Tensor) -> bool:
    """Return True if tokens and samples have changed places; of as many, what is added tells (`updates`)."""
    return x.ndim == 3 and x.shape != entering.shape and x.shape == entering.transpose(0, 1).shape


def value_bias(block: Block, call: AttentionCall) -> Tensor | None:
    """The bias of the value projection: as it is stored, or what the module gives where it is no plain layer."""
    module, channels = block.value, block.value_channels
    if module is None or (is_plain(module) and channels is None):
        return block.value_bias
    width = width_of(module)
    if is_plain(module):
        found = module._parameters.get("bias")
    else:
        found = block.value_bias if width is None or call.value is None else at_zero(module, width, call.value)
    if found is None or channels is None:
        return found
    return found[channels.start : channels.stop] if isinstance(channels, range) else found[list(channels)]


def stream_around(block: Block | None, states: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Stream:
    """The residual stream around a block: its states and their gradients."""
    other = of_other_shape({**states, **gradients})
    held = {name: x.detach() for name, x in {**states, **gradients}.items() if name not in other}
    shape = next((x.shape for x in held.values() if x.ndim == 3), None)
    if shape is not None:
        held = {name: _tokens_apart(x, shape) if x.ndim == 2 else x for name, x in held.items()}
    return Stream(**{name: batch_first(block, x) for name, x in held.items()})


def _tokens_apart(x: Tensor, shape: torch.Size) -> Tensor:
    """A state whose tokens were put side by side, as `[b * t, d]`, in the shape of the stream."""
    if x.shape[0] != shape[:2].numel():
        raise SeamError(
            f"a state of the block has the shape {tuple(x.shape)} where {tuple(shape)} pass through it: tokens that "
            "are packed side by side without their padding cannot be separated."
        )
    return x.view(*shape[:2], x.shape[1])


def tensors_of(
    capture: "Capture", index: int, batch: int | None = None, gradients: Mapping[str, Tensor] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the tensors captured of an attention layer, as fields of a `Layer`: operands, weights and states.

    Args:
        batch: the number of samples; None for that of the states, of which there are some then.
        gradients: those of the stream around the block.
    """
    body, captured = capture.body, capture.layers[index]
    (call,) = captured.calls
    # None for the pooling after the blocks, and where none are known.
    block = body.blocks[index] if index < len(body.blocks) else None
    states = {name: x for name, x in captured.states.items() if name in capture.keep}
    updates = captured.updates if captured.traced is None else capture.updates_of(captured)
    if updates is not None and states.pop("ffn_added", None) is not None and updates[1].added is not None:
        states["ffn_added"] = updates[1].added  # as it is added to the stream
    bare = updates is None and not call.no_query and body.loose is None  # of its weights nothing is asked or missing
    stream = stream_around(block, states, gradients) if states or gradients else Stream()
    batch = batch or next(len(x) for x in vars(stream).values() if x is not None)
    weights = {} if bare else weights_of(block, updates, call, states=states, loose=body.loose)
    mask = None if call.mask is None else as_mask(call.mask, batch)
    return {**operands_of(call, batch, as_heads, mask), **weights, "stream": stream}


def with_hidden_prefix(layer: Layer, hidden: int) -> Layer:
    """A pooling layer that does not read the tokens of the prefix, as one that reads them with weight zero."""
    given = layer.output_grad is not None or layer.weights_grad is not None
    scores = layer.softmax_input if layer.by_hand else layer.scores
    return replace(
        layer,
        weights=F.pad(layer.probs, (hidden, 0)),
        weights_grad=F.pad(replace(layer, grad_scale=None).probs_grad, (hidden, 0)) if given else None,
        softmax_input=None if scores is None else F.pad(scores, (hidden, 0), value=-torch.inf),
        key=None if layer.key is None else F.pad(layer.key, (0, 0, hidden, 0)),
        value=None if layer.value is None else F.pad(layer.value, (0, 0, hidden, 0)),
        mask=None,
        causal=False,
        logsumexp=None,
        backend="dense",
    )


@dataclass(frozen=True)
class Early:
    """A reading of a layer by a method before any gradient is known.

    Args:
        read: a function of the layer's operands, weights and states; not of `valid`, `readout` and gradients.
        needs: the states.
    """

    read: Callable[[Layer], Any]
    needs: frozenset[str]

    def __call__(self, layer: Layer) -> Any:  # noqa: ANN401
        """Return what was read as the forward pass left the layer, or read it from its states now."""
        found = layer.early[self] if self in layer.early else self.read(layer)
        if isinstance(found, VitrailError):
            raise found
        return found


def read_early(capture: "Capture", index: int) -> None:
    """Read of a block that has just run what methods read early, and free the states that are not read later."""
    captured = capture.blocks[index]
    if len(captured.calls) != 1:
        return
    device, (queries, keys) = next(iter(captured.states.values())).device, call_shape(captured.calls[0])
    if queries != keys:
        raise SeamError(unequal(index, queries, keys))
    with torch.no_grad(), without_functions(), own_dtypes(device.type):  # not intercepted
        held = tensors_of(capture, index)
        some = next(x for x in vars(held["stream"]).values() if x is not None)
        every = torch.ones(some.shape[:2], dtype=torch.bool, device=device)
        layer = Layer(index=index, depth=len(capture.blocks), valid=every, readout=every.float(), **held)
        for early in capture.early:
            try:
                captured.early[early] = early.read(layer)
            except VitrailError as error:  # raised where it is asked for, as a pass with NaN in it is made again
                captured.early[early] = error
    passing = capture.plan.wanted.passing
    if "output_weight" in passing:
        captured.forget_trace()
    for name in passing - {"entering", "leaving"} if index == len(capture.blocks) - 1 else passing:
        captured.states.pop(name, None)


def check_read(capture: "Capture") -> None:
    """Raise if something could not be read of a block that has run, in a pass that is not made again."""
    for captured in capture.blocks:
        for found in captured.early.values():
            if isinstance(found, VitrailError):
                raise found
