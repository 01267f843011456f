"""Checks of every request: the host it names, the page it comes from, the size of its body; and response headers."""

import asyncio
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.apps.web import LOOPBACK
from vitrail.apps.web.limits import ForeignError, Refusal, SlowError, TooLargeError

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
SAME_SITE = ("same-origin", "none")


def host_of(header: str) -> str:
    """The name or address in a Host header, without its port; empty where it is malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Whether this is an IP address and no name."""
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
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        raise ForeignError("this request comes from a page of another host, and is not answered.")
    if site is not None and site not in SAME_SITE:
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
