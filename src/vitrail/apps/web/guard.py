"""Checks of every request: the host it names, the page it comes from, the size of its body, its fields.

The fields that a route takes are types. A request that does not fit is refused with the field and the reason.
"""

import asyncio
from collections.abc import Collection
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.apps.web import LOOPBACK, ForeignError, MalformedError, Refusal, SlowError, TooLargeError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=()",
}


def host_of(header: str) -> str:
    """The name or address in a Host header, without its port; empty where it is malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Return True if this is an IP address, not a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def check_host(headers: Headers, bind: str, names: Collection[str]) -> None:
    """Refuse a Host that this server does not go by.

    A page of another host that points its own name here (DNS rebinding) sends that name. On loopback only loopback
    names pass; on any other bind addresses pass too, since an address cannot be pointed elsewhere.
    """
    found = host_of(headers.get("host", ""))
    known = found in {*LOOPBACK, *(name.lower() for name in names)}
    if not (known or (bind not in LOOPBACK and (found == bind.lower() or is_address(found)))):
        raise ForeignError("the request names a host that is not this server's: start it with --allow-host NAME.")


def check_origin(headers: Headers) -> None:
    """Refuse what the page of another host sends: its Origin or Sec-Fetch-Site says so."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    elsewhere = origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    if elsewhere or (site is not None and site not in ("same-origin", "none")):
        raise ForeignError("this request comes from a page of another host, and is not answered.")


class Guard:
    """ASGI middleware: the checks before a request is handled, and the headers on every answer."""

    def __init__(self, app: ASGIApp, *, bind: str, names: Collection[str]) -> None:
        self.app, self.bind, self.names = app, bind, tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI gives it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            headers = Headers(scope=scope)
            check_host(headers, self.bind, self.names)
            if scope["method"] not in ("GET", "HEAD"):
                check_origin(headers)
        except Refusal as refusal:
            await refused(refusal)(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)


def refused(refusal: Refusal) -> JSONResponse:
    """The answer that says why."""
    more = {"retry-after": "2"} if refusal.status == 429 else {}
    if refusal.status in (408, 413):
        more["connection"] = "close"  # what is still on its way is not read
    return JSONResponse({"error": str(refusal)}, refusal.status, more)


async def read_body(request: Request, most: int, patience: float) -> bytes:
    """The body, refused as soon as it is larger than `most` bytes or slower than `patience` seconds."""
    sentence = f"the request is larger than {most / 2**20:.3g} MB, which is the limit. Make it smaller."
    claimed = request.headers.get("content-length", "")
    if claimed.isdigit() and int(claimed) > most:
        raise TooLargeError(sentence)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(patience):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise TooLargeError(sentence)
                parts.append(part)
    except TimeoutError:
        raise SlowError(f"the request did not arrive within {patience:g} seconds. Try again.") from None
    except ClientDisconnect:
        raise SlowError("the connection ended before the request was complete.") from None
    return b"".join(parts)


Name = Annotated[str, Field(min_length=1, max_length=200)]
Number = Annotated[int, Field(ge=0, le=2**31)]
Preset = Annotated[str, Field(pattern="^(recommended|paper|official)$")]
MOST_CELLS, MOST_TOKENS = 4096, 64


class Strict(BaseModel):
    """No conversion between types, and no field that is not named."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Text(Strict):
    """A text to keep as an input."""

    text: str = Field(max_length=100_000)


class Cancel(Strict):
    """End a request of the same session."""

    id: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")]


class Ask(Cancel):
    """The fields of all questions: which request this is, about which input, model and class.

    Args:
        id: chosen by the page; every event of the answer carries it.
        input: what `inputs` gave, or `example:NAME`.
        target: a class, or None for the one the model finds most probable.
    """

    input: Name
    model: Name
    target: Number | None = None


class ExplainAsk(Ask):
    """Maps of several methods."""

    methods: tuple[Name, ...] = Field(min_length=1, max_length=64)
    preset: Preset = "recommended"


class MethodAsk(Ask):
    """One method: its layers and heads."""

    method: Name
    preset: Preset = "recommended"


class RemoveAsk(MethodAsk):
    """The probability while parts are removed in the order of one map."""

    fill: Name = "auto"


class CompareAsk(ExplainAsk):
    """The agreement of the maps, and how much faster than in random order the probability falls."""

    fill: Name = "auto"


class WhatIfAsk(Ask):
    """The probabilities without some patches or tokens."""

    cells: tuple[Number, ...] = Field(max_length=MOST_CELLS)
    fill: Name = "auto"


class ContrastAsk(Ask):
    """The map of evidence for one class against another."""

    other: Number


class AttentionAsk(Ask):
    """Attention of every layer and head from one token; None is the token the answer is read from."""

    token: Number | None = None


class AnswerAsk(Ask):
    """A request for the text that a language model writes, or answers to a question about a picture, word by word."""

    length: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = 16
    question: str = Field(default="", max_length=10_000)


class ClassesAsk(Ask):
    """Classes whose name holds these words, with their probabilities for the input."""

    words: str = Field(default="", max_length=200)


class DownloadAsk(ExplainAsk):
    """All maps as a file, in the colours of the page."""

    form: Name
    palette: Name = "Inferno"


def parse(schema: type[Strict], body: bytes) -> Any:  # noqa: ANN401
    """The request as its type, or an error that names the field."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise MalformedError(f"{where}: {first['msg']}. See docs/app.md for what this route takes.") from None


ASKS: dict[str, type[Ask]] = {
    "explain": ExplainAsk,
    "remove": RemoveAsk,
    "fills": MethodAsk,
    "whatif": WhatIfAsk,
    "contrast": ContrastAsk,
    "layers": MethodAsk,
    "attention": AttentionAsk,
    "answer": AnswerAsk,
    "compare": CompareAsk,
    "classes": ClassesAsk,
    "download": DownloadAsk,
}
"""The routes that compute, and what each takes."""
