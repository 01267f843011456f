"""Which methods apply to a model and its inputs."""

import vitrail
from vitrail.api.requests import read_request
from vitrail.capture.recording.forward import find_body
from vitrail.errors import AnatomyError, MethodError, OptionError
from vitrail.models.inputs import read_inputs
from vitrail.relevance import LayerReader, Walk
from vitrail.relevance.runner import RerunMethod
from vitrail.targets import as_target

WALKING = [
    n
    for n, m in vitrail.METHODS.items()
    if isinstance(m.build(**m.resolve("recommended", {}, "image")), (Walk, LayerReader))
]
"""Methods that read one recording, which all of them share."""
WITH_SOURCES = {"context_cite", "sentence_drop", "soft_ablation"}
"""Methods that remove sentences, of which the token ids of tiny models have none, or explain an answer: tests of their
own give spans and answers."""
CHEAP = {
    "vit_cx": {"threshold": 0.7},
    "tis": {"clusters": 6},
    **{name: {"steps": 2} for name in ("bi_head", "bi_token", "tam", "integrated_gradients")},
    "dix": {"steps": 1},
}
"""Options with which methods that run a model very often run it less often."""


def cheaply(methods) -> list[tuple[str, dict]]:
    """Methods with options that make them quick."""
    return [(name, CHEAP.get(name, {})) for name in methods]


def applying(model, inputs, anatomy=None) -> list[str]:
    """Every method that does not refuse them before the model runs."""
    read = read_inputs(inputs)
    body = find_body(model, anatomy, read)
    return [name for name in vitrail.METHODS if name not in WITH_SOURCES and _applies(name, model, read, body)]


def _applies(name, model, inputs, body) -> bool:
    if inputs.kind not in vitrail.METHODS[name].inputs:
        return False
    request = read_request(name, "recommended", inputs, as_target(None))
    if not isinstance(request.plan, RerunMethod):
        return True
    try:
        request.plan.check(model, body, request.inputs)
    except (AnatomyError, MethodError, OptionError):
        return False
    return True
