"""Serve the page: on this machine only unless asked otherwise, with headers that keep browsers from asking others."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitrail.apps.web.guard import Guarded
from vitrail.apps.web.limits import Limits
from vitrail.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

HOST, PORT, TRIES = "127.0.0.1", 7860, 20
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Settings:
    """What the person who starts the page allows.

    Args:
        allowed: models that visitors may open beside the embedded ones.
        any_model: let them open any.
        pickles: also open models whose weights are pickled.
    """

    host: str = HOST
    port: int | None = None
    allowed: Sequence[str] = ()
    any_model: bool = False
    pickles: bool = False
    limits: Limits = field(default_factory=Limits)


def require_gradio() -> None:
    """Raise an error that says what to install where Gradio is absent."""
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the page is served by Gradio: pip install 'vitrail[app]'") from error


def application(settings: Settings) -> "FastAPI":
    """The page as an application for any ASGI server."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported
    require_gradio()
    import gradio as gr
    from fastapi import FastAPI
    from gradio.themes import Default
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from vitrail.apps.web.actions import House
    from vitrail.apps.web.examples import first_given, thumbnails
    from vitrail.apps.web.page import build
    from vitrail.apps.web.rooms import Room, Rooms
    from vitrail.apps.web.shelf import Shelf
    from vitrail.apps.web.styles import CSS, FONTS, MONO

    shelf = Shelf(settings.allowed, any_model=settings.any_model, pickles=settings.pickles)
    page = build(House(shelf, Rooms(Room(first_given())), settings.limits))
    page.queue(default_concurrency_limit=None)
    page.has_launched = True  # only then does Gradio refuse paths of files that nobody uploaded; mounting leaves it out
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guarded)
    if settings.host in LOOPBACK:  # a page elsewhere must not reach this one under a name of its own
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])
    theme = Default(font=FONTS, font_mono=MONO, primary_hue="orange", neutral_hue="slate")
    more: dict[str, Any] = {"run_history": False, "footer_links": [], "enable_monitoring": False, "ssr_mode": False}
    return gr.mount_gradio_app(
        app,
        page,
        "/",
        theme=theme,
        css=CSS + thumbnails(),
        show_error=False,
        max_file_size=settings.limits.upload,
        **more,
    )


def server(settings: Settings) -> tuple["uvicorn.Server", socket.socket]:
    """A server that is ready to run, and the socket it listens on, taken before the models are loaded."""
    require_gradio()
    import uvicorn

    listening = _listen(settings.host, settings.port)
    # Open pages keep a connection; at the end they are cut, which uvicorn would report as an error for each.
    config = uvicorn.Config(application(settings), log_level="critical", timeout_graceful_shutdown=1)
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
            found.listen()  # two may bind one address, but only one can listen there
        except OSError as error:
            found.close()
            reason = error
            continue
        return found
    where = f"{host}:{port}" if port is not None else f"{host}, ports {PORT} to {PORT + TRIES - 1}"
    raise OptionError(f"{where} cannot be used: {reason}. Choose another with --port.") from reason
