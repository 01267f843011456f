"""A check for one sequence of tokens in order, or several: made once for every form of a model's inputs."""

from contextlib import suppress

from torch import nn

from vitrail.capture.shadow import memory_of, remembered
from vitrail.capture.structure import streams
from vitrail.capture.structure.blocks import POOL, SELF, Discovery, discover
from vitrail.capture.structure.cache import form_of
from vitrail.capture.structure.trace import TRACE, trace_streams
from vitrail.errors import CutGraphError, SeamError
from vitrail.models.anatomy import Anatomy, known_anatomy
from vitrail.models.inputs import Inputs

CUT_PASS = "cut pass"
"""Under this name a call remembers the streams of a pass whose results are cut, and the inputs of that pass."""
SECOND = ("decoder_input_ids", "decoder_inputs_embeds", "input_features")
"""Arguments of models with more than one sequence of tokens."""
LOOKED_AT = {"input_ids", "pixel_values", "visual_embeds", "image_patches", "input_features"}
"""Arguments that are parts of one sequence where a model has no other for them."""


def has_streams(model: nn.Module, inputs: Inputs, given: Anatomy | None) -> bool:
    """Return True if a shadow has several streams, measured where its family or its inputs leave that open."""
    if given is not None:  # the anatomy that the user named says that there is one stream
        return False
    form = form_of(inputs).keys[0]
    several = remembered.get(model, "has streams", form, lambda: _measured_or_known(model, inputs))
    if several:
        memory_of(model).call.pop(TRACE, None)  # nothing else is read off it
    return several


def _measured_or_known(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if there are several streams; if that cannot be measured, a model of a known family has one."""
    try:
        if known_anatomy(model) is None:
            return _has_several(model, inputs)
        return _may_have(model, inputs) and _several(model, inputs)
    except SeamError:
        return known_anatomy(model) is None


def _has_several(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if a model of no known family has several streams."""
    may_have, several = _may_have(model, inputs), None
    if may_have:
        with suppress(SeamError):  # such as queries of frozen weights, without a graph: blocks are sought all the same
            several = _several(model, inputs)
    if several:
        return True
    try:
        found = discover(model, inputs)
    except CutGraphError:
        return False  # the pass over one stream says so
    if _single(found):
        return False
    # Tokens in several axes, several copies of them (series by channel, AltUp), and those of all samples in one axis
    # are numbered by the streams.
    return may_have or _several(model, inputs) or any(len(block.shape) != 2 for block in found.blocks)


def _several(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if tokens are not those of one sequence in order, which a query may pool at the end.

    The pass that was measured is kept for the call that explains them.
    """
    with trace_streams(model, inputs, streams.measured) as found:
        plain = found.is_plain(pooled=False) or found.is_plain(pooled=True)
    several = not plain or len(LOOKED_AT & inputs.kwargs.keys()) > 1
    if several:
        memory_of(model).call[CUT_PASS] = inputs, found
    return several


def _pools(found: Discovery) -> bool:
    """Return True if the last call is a pooling query, used or not."""
    return bool(found.calls) and found.calls[-1].kind == POOL


def _single(found: Discovery) -> bool:
    """Return True if every call is self-attention of all tokens of its block, and all blocks' tokens have one shape."""
    if not found.calls:
        return True
    last = len(found.calls) - _pools(found)
    rows = {call.queries for call in found.calls[:last]}
    own = all(call.kind == SELF and not call.transition for call in found.calls[:last])
    shapes = {block.shape for block in found.blocks}
    plain = len(shapes) == 1 and all(len(shape) == 2 for shape in shapes)
    return own and len(rows) == 1 and plain and rows == {next(iter(shapes))[0]}


def _may_have(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if the modules, the configuration or the inputs of a model are those of several streams."""
    config = getattr(model, "config", None)
    kinds = {getattr(vars(module).get("config"), "model_type", None) for module in model.modules()}
    if "clip" in kinds:  # its towers do not meet: the picture is explained for the texts
        return False
    decodes = any(isinstance(module, nn.TransformerDecoderLayer) for module in model.modules())
    nested = any(getattr(config, name, None) is not None for name in ("vision_config", "encoder", "audio_config"))
    given = len(LOOKED_AT & inputs.kwargs.keys()) > 1 or any(name in inputs.kwargs for name in SECOND)
    return given or decodes or nested or bool(getattr(config, "is_encoder_decoder", False))
