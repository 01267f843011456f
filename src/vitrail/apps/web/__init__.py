"""A page to look at explanations in a browser, by default for this machine only; it is shown while the models load."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitrail.apps.web.limits import Limits
from vitrail.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

HOST, PORT, TRIES = "127.0.0.1", 7860, 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """What the server allows, set by whoever starts it.

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
