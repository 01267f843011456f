"""What the server accepts (bytes, pixels, letters, seconds, requests), and why a request is refused."""

from dataclasses import dataclass

from vitrail.errors import VitrailError

KILOBYTE, MEGABYTE, MEGAPIXEL = 2**10, 2**20, 10**6


@dataclass(frozen=True)
class Limits:
    """The largest values that are accepted; every refusal says which limit it was.

    Args:
        upload: bytes of a picture's file.
        body: bytes of any other request.
        pixels: width times height of a picture.
        letters: characters of a text.
        methods: explanations of one request.
        seconds: time from the arrival of a request to its last result.
        patience: seconds in which the body of a request has to arrive.
        requests: requests of one visitor at a time.
        all_requests: requests of all visitors at a time.
        waiting: requests that wait for one kind of work.
        inputs: pictures and texts kept for one visitor; the oldest go first.
        visitor_store: bytes of pictures kept for one visitor.
        store: bytes of pictures kept for all visitors.
        results: bytes of maps and curves kept for all visitors.
        sessions: visitors who are remembered.
        idle: seconds after which a visitor is forgotten.
    """

    upload: int = 10 * MEGABYTE
    body: int = 64 * KILOBYTE
    pixels: int = 40 * MEGAPIXEL
    letters: int = 1000
    methods: int = 8
    seconds: float = 120.0
    patience: float = 20.0
    requests: int = 8
    all_requests: int = 96
    waiting: int = 24
    inputs: int = 24
    visitor_store: int = 48 * MEGABYTE
    store: int = 512 * MEGABYTE
    results: int = 192 * MEGABYTE
    sessions: int = 512
    idle: float = 3600.0


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
