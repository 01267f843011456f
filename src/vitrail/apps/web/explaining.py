"""One input explained by one model: all fast methods from one recording, slow methods one by one.

Pictures and texts that visitors hand in are read here. The format is known from the content and checked before
decoding.
"""

import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any

from cachetools import LRUCache
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor

import vitrail
from vitrail import targets
from vitrail.apps.web import MEGABYTE, MEGAPIXEL, GoneError, Limits, workers
from vitrail.apps.web.model_cache import ModelCache, OpenModel, running
from vitrail.apps.web.sessions import EXAMPLES, Input, Session, Sessions
from vitrail.apps.web.workers import Job
from vitrail.attribution import Attribution
from vitrail.capture.recording.forward import predict
from vitrail.errors import InputError, OptionError
from vitrail.methods import METHODS, find_method
from vitrail.models.loading import Sample
from vitrail.models.loading.images import read_header, reading, to_rgb, upright
from vitrail.models.texts import check_text
from vitrail.relevance.runner import RerunMethod
from vitrail.targets import check_class

KINDS: dict[str, tuple[tuple[int, bytes], ...]] = {
    "PNG": ((0, b"\x89PNG\r\n\x1a\n"),),
    "JPEG": ((0, b"\xff\xd8\xff"),),
    "WEBP": ((0, b"RIFF"), (8, b"WEBP")),
    "GIF": ((0, b"GIF8"),),
    "BMP": ((0, b"BM"),),
}
"""The formats that are decoded, and the bytes by which each is known: (where, what)."""
QUALITY, THUMBNAIL = 92, 96
DEEP = 4
"""Pictures of more than eight bits take that much more memory, so fewer pixels of them are accepted."""


def read_picture(data: bytes, limits: Limits) -> Image.Image:
    """The picture in these bytes as upright RGB, of an animation the first frame; the file's name plays no part."""
    if len(data) > limits.upload:
        raise InputError(
            f"the file has {len(data) / MEGABYTE:.1f} MB, but at most {limits.upload / MEGABYTE:.0f} MB are accepted. "
            "Make it smaller."
        )
    kinds = [kind for kind, marks in KINDS.items() if all(data.startswith(mark, place) for place, mark in marks)]
    if not kinds:
        raise InputError(f"this is not a picture the server can read: it takes {', '.join(KINDS)}, by content.")
    with reading():
        image = read_header(BytesIO(data), kinds)
        _check_size(image, limits)  # only the header has been read so far
        return to_rgb(upright(image))


def _check_size(image: Image.Image, limits: Limits) -> None:
    width, height = image.size
    most = limits.pixels // (DEEP if image.mode.startswith(("I", "F")) else 1)
    if width * height > most:
        raise InputError(
            f"the picture has {width} x {height} pixels, but at most {most / MEGAPIXEL:g} million are accepted for "
            "its kind. Make it smaller."
        )


def read_text(text: str, limits: Limits) -> str:
    """The text without spaces around it, if it is one and not too long."""
    plain = check_text(text)
    if len(plain) > limits.letters:
        raise InputError(f"the text has {len(plain)} characters, but at most {limits.letters} are accepted.")
    return plain


def data_url(picture: Image.Image) -> str:
    """The picture as an address that holds all of it."""
    sink = BytesIO()
    picture.save(sink, "JPEG", quality=QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{b64encode(sink.getvalue()).decode()}"


def thumbnail(picture: Image.Image) -> str:
    """The middle of the picture, small."""
    return data_url(ImageOps.fit(picture, (THUMBNAIL, THUMBNAIL)))


SMALL = 2**12
"""Bytes that every result is counted for at least."""


class Results:
    """Cases, maps and curves of all visitors under keys that hold the owner, within a number of bytes."""

    def __init__(self, most: int) -> None:
        self._held: LRUCache[Any, Any] = LRUCache(most, size_of)
        self._lock = threading.Lock()

    def get(self, key: object) -> Any:  # noqa: ANN401
        """Return the result kept under this key, or None."""
        with self._lock:
            return self._held.get(key)

    def put(self, key: object, value: Any) -> Any:  # noqa: ANN401
        """Keep the value if it is not larger than all room there is; give it back."""
        with self._lock:
            if size_of(value) <= self._held.maxsize:
                self._held[key] = value
        return value

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return int(self._held.currsize)


def size_of(value: object) -> int:
    """The bytes of an object, or of all tensors and arrays it holds, and a little for the object itself."""
    parts = [value] if hasattr(value, "nbytes") or not hasattr(value, "__dict__") else vars(value).values()
    held = [one for part in parts for one in (part.values() if isinstance(part, Mapping) else [part])]
    return SMALL + sum(getattr(one, "nbytes", 0) for one in held)


@dataclass(frozen=True, eq=False)
class Explorer:
    """The state that all visitors share."""

    models: ModelCache
    sessions: Sessions
    results: Results
    limits: Limits


@dataclass(frozen=True, eq=False)
class Case:
    """One input before one model: what the model was shown, and the probability it gave to every class.

    Args:
        grid: rows and columns of a picture's patches, where they lie in a grid.
    """

    key: tuple[tuple[str, str], str]
    opened: OpenModel
    sample: Sample
    probs: Float[Tensor, " c"]
    grid: tuple[int, int] | None = None

    @property
    def kind(self) -> str:
        """`image` or `text`."""
        return self.opened.loaded.kind

    @property
    def nbytes(self) -> int:
        """The memory it takes, in bytes."""
        inputs = self.sample.inputs
        held = [inputs] if isinstance(inputs, Tensor) else [x for x in inputs.values() if isinstance(x, Tensor)]
        return sum(x.nbytes for x in (*held, self.probs))

    @property
    def best(self) -> int:
        """The most probable class."""
        return int(self.probs.argmax())

    def name(self, index: int) -> str:
        """Return the name of a class."""
        return self.opened.loaded.class_name(index)

    def target(self, wanted: int | None) -> int:
        """The class that is asked for, else the most probable one."""
        return self.best if wanted is None else check_class(wanted, len(self.probs))


Steps = Iterator[Any]


def input_of(session: Session, name: str) -> Input:
    """The visitor's input of this id, or an example."""
    known = EXAMPLES.get(name.removeprefix("example:")) if name.startswith("example:") else None
    return known or session.get(name)


def opened_for(explorer: Explorer, given: Input, model: str) -> Steps:
    """The model for this kind of input, as the generator's return value; it is opened in its own queue."""
    if not explorer.models.is_open(model):
        yield workers.LOAD
        explorer.models.open(model, given.kind)
    return explorer.models.open(model, given.kind)


def case_of(explorer: Explorer, given: Input, model: str, job: Job) -> Steps:
    """The case, as the generator's return value; opening, decoding and the pass each run in their own queue."""
    key = (given.key, model)
    found = explorer.results.get(key)
    if found is not None and explorer.models.is_open(model):
        return found
    opened: OpenModel = yield from opened_for(explorer, given, model)
    if opened.asks:
        raise OptionError(f"{model} answers questions about pictures: ask it one in the panel Answer.")
    yield workers.DECODE
    if (found := explorer.results.get(key)) is not None:  # another request has come first
        return found
    if given.path is None:
        sample = opened.loaded.text(read_text(given.text, explorer.limits))
    else:
        sample = opened.loaded.image(picture_of(given, explorer.limits))
    yield workers.QUICK
    if (found := explorer.results.get(key)) is not None:
        return found
    with running(opened, job, "looking at the input"):
        said = predict(opened.loaded.model, sample.inputs)
    probs = said.logits[0].float().softmax(dim=0)
    return explorer.results.put(key, Case(key, opened, sample, probs, said.grid))


def picture_of(given: Input, limits: Limits) -> Image.Image:
    """The picture that was handed in."""
    if given.path is None:
        raise OptionError("this input is a text, but a picture is needed.")
    try:
        data = given.path.read_bytes()
    except FileNotFoundError:
        raise GoneError("this input is no longer on the server: hand it in again.") from None
    return read_picture(data, limits)


def offered(kind: str) -> list[str]:
    """The methods for this kind of input, the quick ones first."""
    fitting = [name for name, entry in METHODS.items() if kind in entry.inputs and entry.models is None]
    return sorted(fitting, key=lambda name: not is_quick(name))


@cache
def is_quick(name: str) -> bool:
    """Return True if a method only walks over layers that are recorded once for all such methods."""
    entry = METHODS[name]
    return not isinstance(entry.build(**entry.resolve("recommended", {}, entry.inputs[0])), RerunMethod)


def check_methods(methods: Sequence[str], kind: str, limits: Limits) -> list[str]:
    """The methods that are asked for, each once."""
    wanted = list(dict.fromkeys(methods))
    for name in wanted:
        if (needed := find_method(name, kind).models) is not None:
            raise OptionError(f"{name} is for {needed}; this page does not show it.")
    if len(wanted) > limits.methods:
        raise OptionError(f"{len(wanted)} methods are chosen, but at most {limits.methods} are shown at once.")
    return wanted


def key_of(case: Case, target: int, method: str, preset: str) -> tuple[Any, ...]:
    """Under what a map is kept; a preset that the method does not have is the recommended one."""
    return (case.key, target, method, preset if preset in METHODS[method].presets else "recommended")


Found = Attribution | str
"""A map, or why there is none."""


def maps_of(explorer: Explorer, case: Case, target: int, methods: Sequence[str], preset: str, job: Job) -> Steps:
    """Yield `(method, map or reason)` as each becomes known, the quick ones first."""
    kept = explorer.results
    keys = {name: key_of(case, target, name, preset) for name in methods}
    if any(kept.get(key) is None and is_quick(name) for name, key in keys.items()):
        yield workers.QUICK
        _record(explorer, case, target, preset, job)
    found = {name: kept.get(key) for name, key in keys.items()}
    yield from ((name, one) for name, one in found.items() if one is not None)
    for name in (name for name, one in found.items() if one is None):
        yield workers.SLOW
        yield name, _slow(explorer, case, keys[name], job)


def _slow(explorer: Explorer, case: Case, key: tuple[Any, ...], job: Job) -> Found:
    """One slow map, unless another request of the same visitor has made it meanwhile."""
    if (found := explorer.results.get(key)) is not None:
        return found
    twin, (_, target, method, preset) = case.opened.twin, key
    with running(twin, job, f"computing {method}", twin.passes.get((method, preset))) as watch:
        spec = method, {"preset": preset}
        made = twin.explainer.compare(case.sample.inputs, [spec], targets.logit(target))
    if made.failed:
        return explorer.results.put(key, str(made.failed[0]))
    if watch.passes:  # a recording that is replayed makes none
        twin.passes[method, preset] = watch.passes
    return explorer.results.put(key, made[0])


def _record(explorer: Explorer, case: Case, target: int, preset: str, job: Job) -> None:
    """Every quick method at once: they share the forward pass, and a backward pass for each scalar."""
    quick = [name for name in offered(case.kind) if is_quick(name)]
    keys = [key_of(case, target, name, preset) for name in quick]
    keys = [key for key in keys if explorer.results.get(key) is None]
    specs = [(key[2], {"preset": key[3]}) for key in keys]
    with running(case.opened, job, "looking inside the model"):
        model, scalar = case.opened.loaded.model, targets.logit(target)
        made = vitrail.compare(model, case.sample.inputs, specs, scalar, on_error="keep")
    found = iter(made)
    for place, key in enumerate(keys):
        explorer.results.put(key, str(made.failed[place]) if place in made.failed else next(found))


def map_of(explorer: Explorer, case: Case, target: int, method: str, preset: str, job: Job) -> Steps:
    """One map, as the generator's return value."""
    check_methods([method], case.kind, explorer.limits)
    found: Found = ""
    for step in maps_of(explorer, case, target, [method], preset, job):
        if isinstance(step, str):
            yield step
        else:
            found = step[1]
    if not isinstance(found, Attribution):
        raise OptionError(f"{method} has no map here: {found}")
    return found
