"""Sessions: the inputs of each visitor, separate from those of others, and the examples that all visitors share.

Pictures are kept in one folder with a quota.
"""

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from vitrail import models
from vitrail.apps.web import MEGABYTE, BusyError, GoneError, Limits, TooLargeError, UnknownSessionError
from vitrail.apps.web.workers import Job


@dataclass(frozen=True)
class Input:
    """A picture's file or a text, as the visitor gave it.

    Args:
        owner: the session it belongs to; empty for examples, whose results all visitors share.
        digest: what tells two inputs apart.
    """

    kind: str
    owner: str
    digest: str
    text: str = field(default="", repr=False)
    path: Path | None = field(default=None, repr=False)
    size: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Under what its results are kept."""
        return (self.owner, self.digest)


@dataclass(eq=False)
class Session:
    """One visitor's inputs by id, the oldest first, and requests that are under way."""

    id: str
    used: float = field(default_factory=time.monotonic)
    inputs: OrderedDict[str, Input] = field(default_factory=OrderedDict)
    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def stored(self) -> int:
        """Bytes of its pictures."""
        return sum(one.size for one in self.inputs.values())

    def get(self, name: str) -> Input:
        """The input of this id."""
        if name not in self.inputs:
            raise GoneError("this input is no longer on the server: hand it in again.")
        self.inputs.move_to_end(name)
        return self.inputs[name]


class Sessions:
    """All sessions, the longest unused first, and the folder of their pictures."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._folder = TemporaryDirectory(prefix="vitrail-app-", ignore_cleanup_errors=True)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """The folder in which pictures are kept."""
        return Path(self._folder.name)

    @property
    def stored(self) -> int:
        """Bytes of all pictures."""
        return sum(session.stored for session in self._sessions.values())

    def __len__(self) -> int:
        """Return the number of visitors that are remembered."""
        return len(self._sessions)

    def new(self) -> Session:
        """A session with an id that cannot be guessed; the longest unused goes where there are too many."""
        with self._lock:
            oldest = time.monotonic() - self.limits.idle
            for session in [one for one in self._sessions.values() if one.used < oldest and not one.jobs]:
                self._forget(session)
            while len(self._sessions) >= self.limits.sessions:
                unused = next((one for one in self._sessions.values() if not one.jobs), None)
                if unused is None:
                    raise BusyError("too many visitors use this server at the moment. Try again later.")
                self._forget(unused)
            made = Session(secrets.token_urlsafe(18))
            self._sessions[made.id] = made
            return made

    def get(self, name: str | None) -> Session:
        """The session of this id."""
        with self._lock:
            found = self._sessions.get(name or "")
            if found is None:
                raise UnknownSessionError("this session is unknown or has expired: load the page again.")
            found.used = time.monotonic()
            self._sessions.move_to_end(found.id)
            return found

    def add_text(self, session: Session, text: str) -> str:
        """Keep a text; its id."""
        return self._add(session, Input("text", session.id, sha256(text.encode()).hexdigest(), text=text), b"")

    def add_picture(self, session: Session, data: bytes) -> str:
        """Keep a picture's file; its id. Older ones go where a quota would be passed."""
        most = min(self.limits.visitor_store, self.limits.store)
        if len(data) > most:
            raise TooLargeError(f"the file is larger than the {most / MEGABYTE:.0f} MB that one visitor may keep here.")
        path = self.folder / secrets.token_hex(12)
        return self._add(session, Input("image", session.id, sha256(data).hexdigest(), path=path, size=len(data)), data)

    def _add(self, session: Session, one: Input, data: bytes) -> str:
        with self._lock:
            for name, known in session.inputs.items():
                if known.digest == one.digest and known.kind == one.kind:
                    session.inputs.move_to_end(name)
                    return name
            while session.inputs and (
                len(session.inputs) >= self.limits.inputs or session.stored + one.size > self.limits.visitor_store
            ):
                self._drop(session, next(iter(session.inputs)))
            for other in list(self._sessions.values()):
                while other.inputs and self.stored + one.size > self.limits.store:
                    self._drop(other, next(iter(other.inputs)))
            if one.path is not None:
                one.path.write_bytes(data)
            name = secrets.token_urlsafe(9)
            session.inputs[name] = one
            return name

    def _drop(self, session: Session, name: str) -> None:
        gone = session.inputs.pop(name)
        if gone.path is not None:
            gone.path.unlink(missing_ok=True)

    def _forget(self, session: Session) -> None:
        for name in list(session.inputs):
            self._drop(session, name)
        del self._sessions[session.id]

    def close(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()


PICTURES = {name: name.replace("_", " ") for name in models.PICTURES}
QUESTIONS = {"sentence-4": models.QUESTION}
TEXTS = {**{f"sentence-{number + 1}": sentence for number, sentence in enumerate(models.DEMO_SENTENCES)}, **QUESTIONS}
MODELS = {name: "lookup" if name in QUESTIONS else "sentiment" for name in TEXTS}
"""The embedded model that each text was written for."""
SIDE = 160
PATHS = {name: models.picture_path(name) for name in PICTURES}
EXAMPLES = {
    **{name: Input("image", "", sha256(path.read_bytes()).hexdigest(), path=path) for name, path in PATHS.items()},
    **{name: Input("text", "", sha256(text.encode()).hexdigest(), text=text) for name, text in TEXTS.items()},
}


@cache
def example_thumbnail(name: str) -> bytes:
    """The picture of an example, small, as JPEG."""
    from PIL import Image, ImageOps

    sink = BytesIO()
    with Image.open(PATHS[name]) as picture:
        ImageOps.fit(picture, (SIDE, SIDE)).save(sink, "JPEG", quality=85)
    return sink.getvalue()
