"""What explains when nobody names a method."""

import logging
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from vitrail.capture.runner import RerunMethod
from vitrail.errors import VitrailError
from vitrail.methods import DEFAULT_METHOD, METHODS, PREFERRED
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.requests import MethodSpec, Request, read_request
from vitrail.targets import Target

logger = logging.getLogger("vitrail")


def read_spec(spec: MethodSpec, preset: str, inputs: Inputs, target: Target | Callable[[Tensor], Tensor]) -> Request:
    """A method made ready to run; for the default, the best one and what stands in where it does not apply."""
    name, given = (spec, {}) if isinstance(spec, str) else spec
    if name != DEFAULT_METHOD:
        return read_request(spec, preset, inputs, target)
    (best, second), asked = PREFERRED, given.get("preset", preset)
    known = {name: asked in {"recommended", *METHODS[name].presets} for name in PREFERRED}
    if known[second] and not known[best]:
        return _told(read_request((second, given), preset, inputs, target), f"{best} has no preset {asked!r}.")
    # Options are those of the best method: where they are given, no other can stand in.
    alone = bool(set(given) - {"preset"}) or not known[second]
    otherwise = None if alone else read_request((second, given), preset, inputs, target)
    return replace(read_request((best, given), preset, inputs, target), otherwise=otherwise)


def settled(request: Request, model: nn.Module, body: Body) -> Request:
    """The request, or what stands in for it, if its method does not apply to the model and the inputs."""
    if not isinstance(request.plan, RerunMethod):
        return request
    try:
        request.plan.check(model, body, request.inputs)
    except VitrailError as error:
        return instead(request, error)
    return request


def instead(request: Request, error: VitrailError) -> Request:
    """What stands in for a request that cannot be done, or the reason as an error."""
    if request.otherwise is None:
        raise error
    return _told(request.otherwise, str(error))


def _told(request: Request, reason: str) -> Request:
    logger.warning("no method was named, and %s explains: %s", request.entry.name, reason)
    return replace(request, reason=reason)
