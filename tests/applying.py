"""Which methods apply to a model and its inputs."""

import vitrail
from vitrail.errors import AnatomyError, MethodError, OptionError
from vitrail.inputs import read_inputs
from vitrail.record import find_body
from vitrail.requests import read_request
from vitrail.subject import Procedure
from vitrail.targets import as_target


def applying(model, inputs, anatomy=None) -> list[str]:
    """Every method that does not refuse them before the model runs."""
    return [name for name in vitrail.METHODS if _applies(name, model, read_inputs(inputs), find_body(model, anatomy))]


def _applies(name, model, inputs, body) -> bool:
    if inputs.kind not in vitrail.METHODS[name].inputs:
        return False
    request = read_request(name, "recommended", inputs, as_target(None))
    if not isinstance(request.plan, Procedure):
        return True
    if vitrail.METHODS[name].kind == "rules" and body.temperature is not None:
        return False  # no rule says how relevance passes through the cosine of CLIP
    try:
        request.plan.check(model, body, request.inputs)
    except (AnatomyError, MethodError, OptionError):
        return False
    return True
