"""A page to look at explanations in a browser, by default for this machine only; it is shown while the models load.

Also what the server accepts (bytes, pixels, letters, seconds, requests), and the errors that say why a request is
refused.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitrail.errors import MissingExtraError, OptionError, VitrailError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

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


HOST, PORT, TRIES = "127.0.0.1", 7860, 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """The limits of the server, set by whoever starts it.

    Args:
        names: host names the server goes by, beside loopback names and addresses.
        allowed: models that visitors may open beside the embedded ones.
        any_model: let them open any.
        pickles: also open models whose weights are pickled.
        alone: the process serves this page and nothing else, so what the page does not need is not imported.
    """

    host: str = HOST
    port: int | None = None
    allowed: Sequence[str] = ()
    any_model: bool = False
    pickles: bool = False
    names: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    alone: bool = False


def require_extra() -> None:
    """Raise an error that says what to install where the server's packages are absent."""
    try:
        import cachetools  # noqa: F401
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the page needs starlette, uvicorn and more: pip install 'vitrail[app]'") from error


def application(settings: Settings) -> "Starlette":
    """The page as an application for any ASGI server."""
    require_extra()
    from vitrail.apps.web.routes import build

    return build(settings)


def server(settings: Settings) -> tuple["uvicorn.Server", socket.socket]:
    """A server that is ready to run, and the socket it listens on."""
    require_extra()
    import uvicorn

    listening = _listen(settings.host, settings.port)
    config = uvicorn.Config(
        application(settings),
        log_level="critical",  # its other levels write addresses and errors with a visitor's input
        access_log=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=512,
        ws="none",
        server_header=False,
    )
    return uvicorn.Server(config), listening


def _listen(host: str, port: int | None) -> socket.socket:
    """The port that is asked for, or the first free one from the usual on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason: OSError | None = None
    for number in [port] if port is not None else range(PORT, PORT + TRIES):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)  # two may bind one address, but only one can listen there
        except OSError as error:
            found.close()
            reason = error
            continue
        return found
    where = f"{host}:{port}" if port is not None else f"{host}, ports {PORT} to {PORT + TRIES - 1}"
    raise OptionError(f"{where} cannot be used: {reason}. Choose another with --port.") from reason
