"""The routes: static files from memory; JSON in, one JSON object per line out. Torch is imported in the background."""

import asyncio
import gzip
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from vitrail.apps.web import BusyError, MalformedError, Refusal, Settings, bundle
from vitrail.apps.web.guard import ASKS, Cancel, Guard, Strict, Text, parse, read_body, refused
from vitrail.apps.web.sessions import MODELS, PICTURES, TEXTS, Session, Sessions, example_thumbnail
from vitrail.apps.web.workers import LOAD, Job, Steps, Workers, said
from vitrail.errors import VitrailError

SESSION = "x-vitrail-session"
UPLOADS = 12
"""Bodies of pictures that may arrive at a time, of all visitors."""


class Served:
    """The state of one server: sessions, workers, and the part that needs torch once it is there."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.sessions = Sessions(self.limits)
        self.workers = Workers(self.limits.waiting, self.limits.all_requests)
        self.loading: Future[tuple[Any, Any, dict[str, Any]]] | None = None
        self.begun = time.monotonic()
        self.running = self.uploads = 0
        self.files = {
            "/": ("text/html; charset=utf-8", bundle.read("index.html").encode()),
            "/app.js": ("text/javascript; charset=utf-8", bundle.script().encode()),
            "/app.css": ("text/css; charset=utf-8", bundle.style().encode()),
            "/icon.svg": ("image/svg+xml", bundle.read("icon.svg").encode()),
        }

    def start(self) -> None:
        """Import torch and open the embedded models on the loading thread, while the page is served."""
        self.loading = self.workers.submit(LOAD, Job(""), self._load)

    def _load(self) -> tuple[Any, Any, dict[str, Any]]:
        # Imported here: torch and transformers take seconds, in which the page is already shown.
        if self.settings.alone:
            own_the_process()
        actions = import_module("vitrail.apps.web.actions")
        explaining = import_module("vitrail.apps.web.explaining")
        cache = import_module("vitrail.apps.web.model_cache").ModelCache
        given = self.settings
        models = cache(given.allowed, any_model=given.any_model, pickles=given.pickles)
        results = explaining.Results(self.limits.results)
        explorer = explaining.Explorer(models, self.sessions, results, self.limits)
        return actions, explorer, actions.start(explorer)

    def steps(self, begin: Callable[[Any, Any], Steps]) -> Steps:
        """Yield the steps of `begin`, called with the actions and what all visitors share, once torch is loaded."""
        assert self.loading is not None
        if not self.loading.done():
            yield LOAD
        actions, explorer, _ = self.loading.result()
        yield from begin(actions, explorer)

    def close(self) -> None:
        """End the workers and delete the folder."""
        self.workers.close()
        self.sessions.close()


def own_the_process() -> None:
    """Settings of the whole process that suit a server, before torch is imported.

    Threads of one pass that wait for each other sleep: spinning, they take the cores from other requests, and on a
    busy machine a pass needs many times its computing time. Without a GPU Triton is left out, as where it is not
    installed: it compiles for GPUs only, and takes 70 MB.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if not import_module("torch").cuda.is_available():
        sys.modules.setdefault("triton", None)  # pyright: ignore[reportArgumentType]


def _of(request: Request) -> Served:
    return request.app.state.served


def _session(request: Request) -> Session:
    return _of(request).sessions.get(request.headers.get(SESSION))


async def _asked(request: Request, schema: type[Strict] | None) -> tuple[Session, Any]:
    """The visitor's session, and the request as its type; None where there is no such route."""
    owner, limits = _session(request), _of(request).limits
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise MalformedError("this route takes JSON: send content-type: application/json.")
    if schema is None:
        raise HTTPException(404)
    return owner, parse(schema, await read_body(request, limits.body, limits.patience))


async def static(request: Request) -> Response:
    """One of the page's own files, or that the browser has it already."""
    kind, data = _of(request).files[request.url.path]
    headers = {"etag": f'"{sha256(data).hexdigest()[:20]}"', "cache-control": "no-cache", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers["content-encoding"] = gzip.compress(data, 9, mtime=0), "gzip"
    return Response(data, media_type=kind, headers=headers)


async def health(request: Request) -> Response:
    """Answer whether the models are loaded, and how busy the server is."""
    served = _of(request)
    loading = served.loading
    about = {
        "ready": loading is not None and loading.done() and loading.exception() is None,
        "requests": served.running,
        "sessions": len(served.sessions),
        "stored": served.sessions.stored,
        "seconds": round(time.monotonic() - served.begun, 1),
    }
    return JSONResponse(about)


async def session(request: Request) -> Response:
    """A new session."""
    return JSONResponse({"session": _of(request).sessions.new().id})


async def list_examples(request: Request) -> Response:
    """The examples by name."""
    return JSONResponse({"image": PICTURES, "text": TEXTS, "models": MODELS})


async def example_picture(request: Request) -> Response:
    """The picture of an example, small."""
    name = request.path_params["name"]
    if name not in PICTURES:
        raise HTTPException(404)
    return Response(example_thumbnail(name), media_type="image/jpeg", headers={"cache-control": "max-age=3600"})


async def models(request: Request) -> Response:
    """Models, methods and fills; answered as soon as torch is there."""
    loading = _of(request).loading
    assert loading is not None
    _, explorer, about = await asyncio.shield(asyncio.wrap_future(loading))
    names = {kind: explorer.models.names(kind) for kind in ("image", "text")}
    return JSONResponse({**about, "models": names})


async def inputs(request: Request) -> Response:
    """Keep a picture (any other content type than JSON) or a text (JSON)."""
    served, owner = _of(request), _session(request)
    is_text = request.headers.get("content-type", "").startswith("application/json")
    if served.uploads >= UPLOADS:
        raise BusyError("too many files arrive at the moment. Try again in a few seconds.")
    served.uploads += 1
    try:
        most = served.limits.body if is_text else served.limits.upload
        body = await read_body(request, most, served.limits.patience)
        if is_text:
            text = parse(Text, body).text
            steps = served.steps(lambda actions, explorer: actions.take_text(explorer, owner, text))
        else:
            steps = served.steps(lambda actions, explorer: actions.take_picture(explorer, owner, body))
        job = Job(owner.id, time.monotonic() + served.limits.seconds)
        async with aclosing(served.workers.run(job, steps)) as events:
            async for event in events:
                if "error" in event:
                    return JSONResponse(event, 429 if event.get("busy") else 422)
                if "input" in event:
                    return JSONResponse(event)
    finally:
        served.uploads -= 1
    raise BusyError("the server ended before the input was read.")


async def act(request: Request) -> Response:
    """One of the actions that compute, as a stream of events."""
    served, name = _of(request), request.path_params["action"]
    owner, ask = await _asked(request, ASKS.get(name))
    if len(owner.jobs) >= served.limits.requests or served.running >= served.limits.all_requests:
        raise BusyError("too many requests are under way. Wait for one of them to end.")
    if ask.id in owner.jobs:
        raise MalformedError("id: a request with this id is under way. Choose another.")
    job = Job(owner.id, time.monotonic() + served.limits.seconds)
    owner.jobs[ask.id] = job
    served.running += 1
    steps = served.steps(lambda actions, explorer: actions.ACTIONS[name](explorer, owner, ask, job))
    events = _answered(served, owner, ask.id, job, steps, request)
    return StreamingResponse(events, media_type="application/x-ndjson", headers={"cache-control": "no-store"})


async def _answered(
    served: Served, owner: Session, name: str, job: Job, steps: Steps, request: Request
) -> AsyncIterator[bytes]:
    """The events of a job as lines; the job is stopped as soon as the visitor has left."""
    leaving = asyncio.create_task(_left(request, job))
    try:
        async with aclosing(served.workers.run(job, steps)) as events:
            async for event in events:
                line = json.dumps({"id": name, **event}, separators=(",", ":"), allow_nan=False)
                yield line.encode() + b"\n"
    finally:
        job.stop.set()
        leaving.cancel()
        owner.jobs.pop(name, None)
        served.running -= 1


async def _left(request: Request, job: Job) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.stop.set()


async def cancel(request: Request) -> Response:
    """Stop a request of the same session."""
    owner, ask = await _asked(request, Cancel)
    job = owner.jobs.get(ask.id)
    if job is not None:
        job.stop.set()
    return JSONResponse({"stopped": job is not None})


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return refused(error)
    if isinstance(error, HTTPException):
        words = "there is no such route." if error.status_code == 404 else "this is not answered."
        return JSONResponse({"error": words}, error.status_code)
    return JSONResponse({"error": said(error)}, 422 if isinstance(error, VitrailError) else 500)


def build(settings: Settings) -> Starlette:
    """The application."""
    served = Served(settings)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        served.start()
        yield
        served.close()

    routes = [
        *(Route(path, static) for path in served.files),
        Route("/api/health", health),
        Route("/api/session", session, methods=["POST"]),
        Route("/api/models", models),
        Route("/api/examples", list_examples),
        Route("/api/examples/{name}.jpg", example_picture),
        Route("/api/inputs", inputs, methods=["POST"]),
        Route("/api/cancel", cancel, methods=["POST"]),
        Route("/api/{action}", act, methods=["POST"]),
    ]
    handlers: Any = dict.fromkeys((VitrailError, HTTPException, Exception), _on_error)
    guard = Middleware(Guard, bind=settings.host, names=settings.names)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers, lifespan=life)
    app.state.served = served
    return app
