"""Models and data sets by their specs, kept open between units, and the hashes that name them.

Beside the published data sets there are those of the package (`demo_pictures`, `demo_sentences`, contexts written from
a seed) and the user's own (a folder of pictures, a file of sentences or of contexts). The bench draws random numbers
from its own seed (`own_generators`).

The identity of a run is a hash of everything of a model and of a data set that decides a number. Every weight of a
model is hashed. Data sets are hashed example by example, as they are read: the bytes of a picture's file where it has
one, else its pixels; texts, labels, masks, boxes, rationales and answers. Only hashes are kept, so a set of any size
fits into memory.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitrail.api.explainer import Explainer
from vitrail.errors import InputError, ModelError, OptionError, as_path, suggest
from vitrail.evaluate import data
from vitrail.evaluate.bench.plan import DataSpec, ModelSpec
from vitrail.evaluate.data.contexts import CONTEXTS, GENERATED
from vitrail.evaluate.data.examples import Dataset, DatasetEntry, Example, ImageExample, TextExample
from vitrail.evaluate.data.files import read_lines, require_file
from vitrail.evaluate.data.pictures import PictureFile
from vitrail.evaluate.stitch import open_shipped
from vitrail.models import PICTURES, SENTENCES
from vitrail.models.folders import images_in
from vitrail.models.loading import Loaded, load

if TYPE_CHECKING:
    from PIL.Image import Image


Broken = dict[str, str]
"""By key, why an example cannot be read."""


@dataclass(frozen=True)
class RunSettings:
    """The settings with which models are run."""

    device: str = "cpu"
    dtype: torch.dtype | None = None
    forward_batch: int = 64
    preset: str = "recommended"
    seed: int = 0

    def precision(self) -> AbstractContextManager[Any]:
        """The precision of the perturbed passes."""
        return nullcontext() if self.dtype is None else torch.autocast(torch.device(self.device).type, self.dtype)


ACCELERATORS = {
    "cuda": (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all, torch.cuda.manual_seed_all),
    "mps": (torch.mps.get_rng_state, torch.mps.set_rng_state, torch.mps.manual_seed),
}
"""Device type -> read, put back and seed its generators."""


@contextmanager
def own_generators(*, device: str = "cpu", seed: int | None = None) -> Iterator[None]:
    """Inside the block the global generators may be drawn from; after it, also after an error, they are as before.

    Args:
        device: the device whose generators are kept beside those of the CPU. A CUDA that the block does not use is not
            initialised, and a seed that waits for its start is not replaced.
        seed: of torch's generators inside the block; without it they go on from where they are.
    """
    own = torch.device(device).type
    used = [kind for kind in ACCELERATORS if kind == own or (kind == "cuda" and torch.cuda.is_initialized())]
    kept: list[tuple[Callable[[Any], Any], Any]] = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
        (torch.default_generator.set_state, torch.default_generator.get_state()),
        *((ACCELERATORS[kind][1], ACCELERATORS[kind][0]()) for kind in used),
    ]
    try:
        if seed is not None:  # `torch.manual_seed` would seed every device there is
            torch.default_generator.manual_seed(seed)
            if own in ACCELERATORS:
                ACCELERATORS[own][2](seed)
        yield
    finally:
        for restore, state in kept:
            restore(state)


CUTS = ((0.0, 0.0, 1.0), (0.0, 0.0, 0.85), (0.15, 0.0, 0.85), (0.0, 0.15, 0.85), (0.15, 0.15, 0.85), (0.1, 0.1, 0.8))
"""Left, top and side of each cut, as shares of the picture."""


def read_picture_folder(source: str | Path) -> Dataset[ImageExample]:
    """The pictures right inside a folder, upright and without labels."""
    folder = Path(source)
    paths = images_in(folder)
    names = [_written_name(path) for path in paths]
    return Dataset("pictures", str(folder), range(len(paths)), names.__getitem__, partial(_from_file, paths))


def _written_name(path: Path) -> str:
    """The name of a file as a results file can hold it: bytes that are not UTF-8 are written as escapes."""
    return path.name.encode(errors="backslashreplace").decode()


def _from_file(paths: list[Path], number: int) -> ImageExample:
    name = _written_name(paths[number])
    return ImageExample(name, PictureFile(name, paths[number], upright=True))


def read_sentences(source: str | Path) -> Dataset[TextExample]:
    """The lines of a text file, without labels."""
    path = require_file(Path(source), "file of sentences")
    return _texts("sentences", str(path), read_lines(path))


def read_demo_pictures(source: str | Path = "") -> Dataset[ImageExample]:
    """Cuts of the two pictures of the demo, each also mirrored."""
    made = [(name, cut, mirrored) for name in PICTURES for mirrored in (False, True) for cut in CUTS]
    keys = [f"{name}-{CUTS.index(cut)}{'-mirrored' if mirrored else ''}" for name, cut, mirrored in made]
    return Dataset("demo_pictures", "vitrail.demo", range(len(made)), keys.__getitem__, partial(_cut, keys, made))


def _cut(keys: list[str], made: list[Any], number: int) -> ImageExample:
    return ImageExample(keys[number], partial(_open_cut, *made[number]))


def _open_cut(name: str, cut: tuple[float, float, float], mirrored: bool) -> "Image":  # noqa: FBT001
    from PIL import ImageOps

    whole = open_shipped(name)
    left, top, side = (round(share * min(whole.size)) for share in cut)
    piece = whole.crop((left, top, left + side, top + side))
    return ImageOps.mirror(piece) if mirrored else piece


def read_demo_sentences(source: str | Path = "") -> Dataset[TextExample]:
    """Sentences of praise and complaint about films."""
    return _texts("demo_sentences", "vitrail", list(SENTENCES))


def _texts(name: str, source: str, lines: list[str]) -> Dataset[TextExample]:
    def key(number: int) -> str:
        return f"line-{number + 1}"

    return Dataset(name, source, range(len(lines)), key, lambda number: TextExample(key(number), lines[number]))


_INSIDE = "nothing: it is inside the package"
OWN = (
    DatasetEntry("pictures", read_picture_folder, "image", (), "a folder of pictures", "your own"),
    DatasetEntry("sentences", read_sentences, "text", (), "a text file, one text a line", "your own"),
    DatasetEntry("demo_pictures", read_demo_pictures, "image", (), _INSIDE, "vitrail"),
    DatasetEntry("demo_sentences", read_demo_sentences, "text", (), _INSIDE, "vitrail"),
)
DATA: dict[str, DatasetEntry] = {**data.DATASETS, **{entry.name: entry for entry in OWN}, **CONTEXTS}
NO_PATH = ("demo_pictures", "demo_sentences", *GENERATED)


def find_entry(name: str) -> DatasetEntry:
    """The table line of a data set, published or one's own."""
    if name not in DATA:
        raise OptionError(f"there is no data set {name!r}. {suggest(name, DATA)}")
    return DATA[name]


FILES = {".txt": "sentences", ".jsonl": "contexts"}


def guess(path: str) -> str:
    """The name under which a user's own folder or file is read."""
    place = as_path(path, "data")
    if place.is_dir():
        return "pictures"
    if place.suffix in FILES:
        return FILES[place.suffix]
    raise InputError(
        f"{path} is neither a folder of pictures nor a .txt file with one text a line, nor a .jsonl file with one "
        "context a line. Other data sets are written NAME=PATH, for example sst2=glue/SST-2."
    )


KINDS = {"image": "image", "sequence": "text", "question": "question", "causal": "answer"}
"""A model's task -> the kind of data it reads."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A model on its device."""

    loaded: Loaded
    device: torch.device

    @cached_property
    def explainer(self) -> Explainer:
        """Return the explainer of its batches."""
        return Explainer(self.loaded.model)

    @property
    def kind(self) -> str:
        """The kind of data it reads."""
        return KINDS[self.loaded.task]


@lru_cache(maxsize=2)
def open_model(spec: ModelSpec, device: str) -> Opened:
    """The model, loaded once; two stay loaded."""
    with own_generators():  # a new model draws its first weights
        loaded = load(spec.name, arch=spec.arch, device=device)
    if loaded.task not in KINDS:
        raise ModelError(
            f"{loaded.name} is a model for {loaded.task} tasks; the bench measures models that classify images or "
            "texts or answer questions, and causal language models."
        )
    loaded.model.requires_grad_(requires_grad=False)
    return Opened(loaded, torch.device(device))


@lru_cache(maxsize=4)
def open_data(spec: DataSpec) -> Dataset[Any]:
    """All examples of the data set, opened once."""
    entry = find_entry(spec.name)
    if not spec.path and spec.name not in NO_PATH:
        raise OptionError(f"the path of {spec.name} is missing. Write {spec.name}=PATH; it must hold {entry.needs}.")
    return entry.open(spec.path, **spec.options)


def forget() -> None:
    """Open models and data sets anew: their files may have changed."""
    open_model.cache_clear()
    open_data.cache_clear()


CHUNK = 1 << 22
"""So many values of a tensor are copied from its device at a time."""
UNIMPORTANT = {"_name_or_path", "name_or_path", "transformers_version"}
UNREADABLE = b"\nunreadable"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def weights_hash(model: nn.Module) -> str:
    """A hash of the names, shapes, dtypes and values of all parameters and buffers: one changed weight changes it."""
    digest = hashlib.sha256()
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tuple(x.shape)} {x.dtype}\n".encode())
        for part in x.detach().reshape(-1).split(CHUNK):
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def setup_hash(loaded: Loaded) -> str:
    """A hash of the model's modules, config and classes, and of its image processor or tokenizer."""
    config = getattr(loaded.model, "config", None)
    known = {
        "modules": ADDRESS.sub("", repr(loaded.model)),
        "config": config.to_dict() if hasattr(config, "to_dict") else str(config),  # pyright: ignore
        "classes": loaded.class_names,
        "image_size": loaded.image_size,
        "processor": _processor(loaded.processor),
        "tokenizer": _tokenizer(loaded.tokenizer),
    }
    text = json.dumps(_without_names(known), sort_keys=True, default=lambda x: ADDRESS.sub("", repr(x)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _processor(processor: Any) -> Any:  # noqa: ANN401
    """The settings of the image processor. Those of an embedded model belong to the version of vitrail."""
    if processor is None:
        return None
    return processor.to_dict() if hasattr(processor, "to_dict") else asdict(processor)


def _tokenizer(tokenizer: Any) -> Any:  # noqa: ANN401
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    return [type(tokenizer).__name__, rules, tokenizer.special_tokens_map, tokenizer.padding_side]


def _without_names(value: Any) -> Any:  # noqa: ANN401
    """The same without the places a model was loaded from, which decide nothing."""
    if isinstance(value, Mapping):
        return {str(name): _without_names(x) for name, x in value.items() if name not in UNIMPORTANT}
    return [_without_names(x) for x in value] if isinstance(value, (list, tuple)) else value


def set_hash(dataset: Dataset[Any]) -> str:
    """A hash of the keys of all examples in their order and of the names of classes, without reading an example."""
    digest = hashlib.sha256()
    for names in (dataset.classes, dataset.mask_classes):
        digest.update(json.dumps(sorted(names.items())).encode())
    for key in dataset.keys:
        digest.update(f"\n{key}".encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def example_hash(example: Example) -> str:
    """A hash of everything that is measured of an example."""
    digest = hashlib.sha256(type(example).__name__.encode())
    if not isinstance(example, ImageExample):
        digest.update(json.dumps(astuple(example)).encode())
        return digest.hexdigest()[:32]
    boxes = [astuple(box) for box in example.boxes]
    digest.update(json.dumps([example.key, example.label, boxes]).encode())
    for content in (_picture, _mask):
        try:
            for part in content(example):
                digest.update(part)
        except InputError:  # a damaged example is stored with its reason, so that it is damaged is part of its content
            digest.update(UNREADABLE)
    return digest.hexdigest()[:32]


def _picture(example: ImageExample) -> Iterator[Any]:
    """The bytes of the picture's file where it has one, else its pixels."""
    if isinstance(example.open_image, PictureFile):
        yield b"\nfile\n"
        yield example.open_image.stored()
        if example.open_image.is_turned:
            yield b"\nupright\n"
    else:
        pixels = np.ascontiguousarray(example.image)
        yield f"\npixels {pixels.shape} {pixels.dtype}\n".encode()
        yield pixels


def _mask(example: ImageExample) -> Iterator[Any]:
    mask = example.mask
    if mask is not None:
        yield f"\nmask {tuple(mask.shape)}\n".encode()
        yield np.ascontiguousarray(mask.numpy().astype(np.int32))


def hash_of(dataset: Dataset[Any], number: int) -> str:
    """The hash of the example at a place of the source, also where it cannot be read."""
    try:
        return example_hash(dataset.read(number))
    except InputError:
        return hashlib.sha256(UNREADABLE).hexdigest()[:32]
