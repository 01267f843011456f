"""What stands between the page and the network: headers on every answer, and questions that are not passed on."""

import json
from typing import Any

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
"""Nothing is loaded from any other host; Gradio's own scripts stand partly in the page itself."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
REFUSED = b'{"error": "files are uploaded; this page fetches none from an address"}'


class Guarded:
    """Adds the headers to every answer, and answers for itself where Gradio would fetch a file from another host."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """One request, as ASGI hands it over."""

        async def guarded(message: Any) -> None:  # noqa: ANN401
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        if not _is_question(scope):
            await self.app(scope, receive, guarded)
            return
        messages, whole = await _received(receive)
        if fetches(whole):
            kind = [(b"content-type", b"application/json")]
            await guarded({"type": "http.response.start", "status": 400, "headers": kind})
            await guarded({"type": "http.response.body", "body": REFUSED})
            return

        async def again() -> Any:  # noqa: ANN401
            return messages.pop(0) if messages else await receive()

        await self.app(scope, again, guarded)


def fetches(question: bytes) -> bool:
    """Whether a question in JSON names a file by an address."""
    try:
        return _names_address(json.loads(question))
    except ValueError:
        return False  # Gradio refuses what is no JSON


def _names_address(x: object) -> bool:
    if isinstance(x, dict):
        path = x.get("path")
        return (isinstance(path, str) and "://" in path) or any(map(_names_address, x.values()))
    return isinstance(x, list) and any(map(_names_address, x))


def _is_question(scope: Any) -> bool:  # noqa: ANN401
    """Whether this is a request with a body that is no upload."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    kind = next((value for name, value in scope["headers"] if name.lower() == b"content-type"), b"")
    return not kind.lower().startswith(b"multipart/")


async def _received(receive: Any) -> tuple[list[Any], bytes]:  # noqa: ANN401
    """All messages of a request's body, and the body."""
    messages, body, more = [], b"", True
    while more:
        message = await receive()
        messages.append(message)
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
    return messages, body
