"""Why a request is refused: an HTTP status and a sentence for the visitor."""

from vitrail.errors import VitrailError


class Refusal(VitrailError):
    """A request that is not answered; `status` is the HTTP status."""

    status = 400


class MalformedError(Refusal, ValueError):
    """The request is not what the route takes."""


class UnknownSessionError(Refusal, LookupError):
    """The request names no session that is known."""

    status = 401


class ForeignError(Refusal, PermissionError):
    """The request comes from the page of another host, or names another host."""

    status = 403


class GoneError(Refusal, LookupError):
    """The input was never this visitor's, or is no longer kept."""

    status = 410


class TooLargeError(Refusal, ValueError):
    """The body of the request is larger than the limit."""

    status = 413


class BusyError(Refusal, RuntimeError):
    """Too many requests are under way."""

    status = 429


class SlowError(Refusal, TimeoutError):
    """The body of the request did not arrive in time."""

    status = 408
