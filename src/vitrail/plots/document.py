"""A whole HTML document that needs nothing beside it, and that no browser lets fetch anything."""

from base64 import b64encode
from hashlib import sha256
from html import escape

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""For browsers: pictures inside the page and its own styles, but no request, no frame, no script of anyone else's."""
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>{style}</head>
<body style="margin:0;background:#fff">
{body}
</body>
</html>
"""
KINDS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
"""How a file of each kind begins."""


def document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """The document.

    Args:
        title: plain text; it is escaped here.
        body: HTML, escaped by whoever wrote it.
        style: a style sheet.
        script: the only script that may run; the page names its hash, so that one in the body would be refused.
    """
    allowed = f"; script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" if script else ""
    return PAGE.format(
        policy=POLICY + allowed,
        title=escape(title),
        style=f"<style>{style}</style>" if style else "",
        body=f"{body}\n<script>{script}</script>" if script else body,
    )


def image(data: bytes, alt: str, *, look: str = "") -> str:
    """An `img` with the picture inside.

    Args:
        data: of a PNG, JPEG or WebP file.
        alt: plain text for those who do not see it.
        look: CSS.
    """
    kind = next(kind for start, kind in KINDS.items() if data.startswith(start))
    style = f' style="{look}"' if look else ""
    return f'<img alt="{escape(alt)}" src="data:{kind};base64,{b64encode(data).decode()}"{style}>'
