"""Attributions and figures on disk. `.json` and `.npz` files are read back exactly; pictures cannot be read back.

A file is checked before it is written and after it was read: the fields of an attribution have to fit each other.
"""

import json
import math
import os
import secrets
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import fields
from errno import ELOOP
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from vitrail.attribution import Attribution
from vitrail.errors import OptionError, OutputError, as_path
from vitrail.targets import SPAN_SCALARS, Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def encode(value: object) -> Any:  # noqa: ANN401
    """The value as JSON holds it; tuples, infinite numbers and mappings with other keys than text marked as such."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(x) for key, x in value.items()}
        return {"$mapping": [[encode(key), encode(x)] for key, x in value.items()]}
    if isinstance(value, (list, tuple)):
        found = [encode(x) for x in value]
        return {"$tuple": found} if isinstance(value, tuple) else found
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise OutputError(
        f"an option or a line of the provenance is {value!r}, a {type(value).__name__}, which a file cannot hold. Use "
        "text, numbers, booleans, None, and lists, tuples or mappings of them."
    )


def decode(value: Any) -> Any:  # noqa: ANN401
    """Return the value that `encode` was given."""
    if isinstance(value, list):
        return [decode(x) for x in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$tuple" in value:
        return tuple(decode(x) for x in value["$tuple"])
    if "$mapping" in value:
        return {decode(key): decode(x) for key, x in value["$mapping"]}
    return {key: decode(x) for key, x in value.items()}


def finite(value: Any) -> Any:  # noqa: ANN401
    """The value with null instead of NaN and infinity, which JSON cannot write."""
    if isinstance(value, Mapping):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_finite(value: Any) -> bool:  # noqa: ANN401
    """Return True if no number inside is NaN or infinite."""
    if isinstance(value, Mapping):
        return all(map(is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def json_text(value: Any) -> str:  # noqa: ANN401
    """The value as JSON that every reader takes: NaN and infinity are null."""
    return json.dumps(finite(value), allow_nan=False)


Fields = Any
"""An attribution, or any object with its fields: what was read from a file is checked before it becomes one."""
INPUT_KINDS = ("image", "text")


def check_fields(fields: Fields) -> None:
    """Raise ValueError with the first contradiction between the fields of an attribution."""
    _check_words(fields)
    scores = fields.scores
    if not isinstance(scores, Tensor) or scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError("its scores are no real numbers [samples, patches or tokens]")
    if 0 in scores.shape:
        raise ValueError(f"its scores have shape {list(scores.shape)}: there are none")
    for name in SHAPES:
        _check_shape(fields, name)
    _check_grid(fields)
    _check_tokens(fields)
    _check_target(fields)


def _check_words(fields: Fields) -> None:
    for name in ("method", "preset"):
        value = getattr(fields, name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"its {name} is {value!r}, not a name")
    if fields.kind not in INPUT_KINDS:
        raise ValueError(f"its kind is {fields.kind!r}, which is none of {', '.join(INPUT_KINDS)}")
    if not isinstance(fields.signed, bool):
        raise ValueError(f"signed is {fields.signed!r}, neither true nor false")
    for name in ("options", "provenance"):
        if not isinstance(getattr(fields, name), Mapping):
            raise ValueError(f"its {name} are no table of names and values")


REAL: Callable[[Tensor], bool] = Tensor.is_floating_point
SHAPES: dict[str, tuple[str, Callable[[Tensor], bool], str]] = {
    "scores": ("bn", REAL, "real numbers"),
    "valid": ("bn", lambda x: x.dtype is torch.bool, "true or false"),
    "own": ("bn", REAL, "real numbers"),
    "readout": ("b", lambda x: not x.is_floating_point() and x.dtype is not torch.bool, "whole numbers"),
    "pixels": ("bhw", REAL, "real numbers"),
    "layers": ("bln", REAL, "real numbers"),
    "heads": ("bln", REAL, "real numbers"),
}
"""By field: its axes, what its values have to be, and how that is called. `b` and `n` are those of the scores."""


def _check_shape(fields: Fields, name: str) -> None:
    x, (axes, fits, meaning) = getattr(fields, name), SHAPES[name]
    if x is None:
        return
    if not isinstance(x, Tensor) or not fits(x):
        raise ValueError(f"its {name} are not {meaning}")
    known = dict(zip("bn", fields.scores.shape, strict=True))
    if x.ndim != len(axes) or any(known.get(a, n) != n or n == 0 for a, n in zip(axes, x.shape, strict=True)):
        said = ", ".join(str(known.get(axis, "any")) for axis in axes)
        raise ValueError(f"its {name} have shape {list(x.shape)}, but its scores ask for [{said}]")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise ValueError(f"its {name} hold {int((~torch.isfinite(x)).sum())} NaN or infinite values of {x.numel()}")


def _check_grid(fields: Fields) -> None:
    for name in ("grid", "size"):
        pair = getattr(fields, name)
        if pair is None:
            continue
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(_is_whole(x) and x > 0 for x in pair):
            raise ValueError(f"its {name} is {pair!r}, not two whole numbers above zero")
    grid, count = fields.grid, fields.scores.shape[1]
    if grid is not None and grid[0] * grid[1] != count:
        raise ValueError(f"it has {count} scores for a grid of {grid[0]} x {grid[1]}")
    if fields.pixels is not None and fields.size not in (None, tuple(fields.pixels.shape[1:])):
        raise ValueError(f"its pixels are {list(fields.pixels.shape[1:])}, its image {list(fields.size or ())}")


def _check_tokens(fields: Fields) -> None:
    tokens, (batch, count) = fields.tokens, fields.scores.shape
    if fields.readout is not None and fields.kind == "text":
        low, high = int(fields.readout.min()), int(fields.readout.max())
        if not -1 <= low <= high < count:
            raise ValueError(f"its readout is token {low if low < -1 else high}, but it has {count} tokens")
    if tokens is None:
        return
    if not isinstance(tokens, tuple) or len(tokens) != batch or not all(isinstance(row, tuple) for row in tokens):
        raise ValueError(f"its tokens are not those of {batch} samples")
    for row in tokens:
        if len(row) != count or not all(isinstance(token, str) for token in row):
            raise ValueError(f"it has {len(row)} tokens for {count} scores, or some that are no text")


def _check_target(fields: Fields) -> None:
    target, batch = fields.target, fields.scores.shape[0]
    if not isinstance(target.name, str) or not isinstance(target.absolute, bool):
        raise ValueError(f"its target is {target.name!r}, which is no name")
    if target.scalar not in SPAN_SCALARS:
        raise ValueError(f"its target has the scalar {target.scalar!r}, which is not known")
    if target.position is not None and not _is_whole(target.position):
        raise ValueError(f"its target has the position {target.position!r}, not a whole number")
    for classes in (target.first, target.second):
        each = classes if isinstance(classes, tuple) else (classes,) * batch
        if len(each) != batch or not all(c is None or _is_whole(c) for c in each):
            raise ValueError(f"its target names {classes!r}, not one class for each of {batch} samples")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


FORMAT, VERSION = "vitrail.attribution", 2
HEADER, STREAM = "header", "streams/"
UNMARKED = "it is not marked as an attribution"
TENSORS = ("scores", "valid", "own", "readout", "pixels", "layers", "heads")
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
}
WORDS = ("method", "kind", "signed", "preset")
TUPLES = ("grid", "size", "tokens")
FIGURES, PAGE = (".png", ".pdf", ".svg"), ".html"
DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, BadZipFile, EOFError, zlib.error)
"""What reading may raise where a file is not what its suffix says."""
Header = dict[str, Any]
Arrays = dict[str, Tensor]


def save(
    attribution: Attribution,
    path: str | Path,
    image: Any = None,  # noqa: ANN401
    *,
    index: int = 0,
    map_only: bool = False,
    **style: Any,  # noqa: ANN401
) -> Path:
    """Write an attribution in the form that the suffix names, and return the path. See `Attribution.save`."""
    path, suffix = _path_of(path, "an attribution", "is saved as", (*WRITERS, *FIGURES, PAGE))
    if suffix in WRITERS:
        if image is not None or index or map_only or style:
            raise OptionError(
                f"a {suffix} file holds all samples and no picture: leave image, index, map_only and styles out, or "
                f"write a picture, such as {path.with_suffix('.png').name}."
            )
        return write_bytes(path, _written(attribution, path, WRITERS[suffix]))
    if map_only:
        if suffix != ".png" or style:
            raise OptionError("map_only writes a .png without title and colour bar: use that suffix, and no style.")
        from vitrail.plots.pictures import map_picture

        return write_bytes(path, map_picture(attribution, image, index=index))
    if suffix == PAGE:
        if wrong := set(style) - {"merge"}:
            raise OptionError(f"a page has no style {min(wrong)!r}: it takes merge, image and index.")
        from vitrail.plots.page import to_page

        return write_bytes(path, to_page(attribution, image, index=index, **style).encode())
    figure = attribution.plot(image, index=index, **style)
    return write_bytes(path, _picture(suffix, attribution, attribution.title(index, probable=False), figure))


def _written(attribution: Attribution, path: Path, writer: Callable[[Attribution], bytes]) -> bytes:
    """Return the bytes of a file, after a check that `load` will take it."""
    try:
        for one in (attribution, *attribution.streams.values()):
            check_fields(one)
    except ValueError as error:
        raise OutputError(f"this attribution cannot be saved as {path}, since {error}.") from error
    return writer(attribution)


def load(path: str | Path) -> Attribution:
    """The attribution that `save` wrote as `.json` or `.npz`, tensors on the CPU."""
    path, suffix = _path_of(path, "an attribution", "is read from", READERS)
    try:
        return _attribution(*READERS[suffix](path.read_bytes()))
    except FileNotFoundError as error:
        raise OutputError(f"there is no file {path}. Check its name and folder.") from error
    except DAMAGED as error:
        raise OutputError(
            f"{path} cannot be read as an attribution: {error}. It is damaged or was not written by vitrail; write "
            "it again with attribution.save(path)."
        ) from error


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """The path, after the figure was written as `.png`, `.pdf` or `.svg`."""
    path, suffix = _path_of(path, "a figure", "is saved as", FIGURES)
    from vitrail.plots.canvas import rendered

    return write_bytes(path, rendered(figure, suffix[1:]))


def _path_of(path: str | Path, what: str, use: str, known: Collection[str]) -> tuple[Path, str]:
    """The path and its suffix in small letters, which has to be a known one."""
    path = as_path(path, what)
    if path.suffix.lower() not in known:
        found = f"ends in {path.suffix!r}" if path.suffix else "has no suffix"
        raise OutputError(f"the name {path.name!r} {found}, but {what} {use} {', '.join(known)}. Rename it.")
    return path, path.suffix.lower()


def write_bytes(path: Path, data: bytes) -> Path:
    """The path, which holds either all of the data or what it held before. A link stays one: its target is written."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(ELOOP, os.strerror(ELOOP))
        if target.exists() and not target.is_file() and not target.is_dir():  # a device or a pipe
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}. Choose a folder that exists and may be written to."
        ) from error
    return path


def _replace(path: Path, data: bytes) -> None:
    """Write to a file with a unique name, then replace the old file in one step."""
    unfinished = path.with_name(f".vitrail-{secrets.token_hex(8)}.part")
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:  # also when the user breaks off
        with suppress(OSError):
            unfinished.unlink()
        raise


DESCRIPTION = {".png": "Subject", ".pdf": "Subject", ".svg": "Description"}
"""The name under which a file of each form holds how it was made."""


def _picture(suffix: str, attribution: Attribution, title: str, figure: "Figure") -> bytes:
    """Return a figure as a file that also holds how it was made."""
    from vitrail.plots.canvas import rendered
    from vitrail.plots.page import origin

    about = {"Title": f"{attribution.label}: {title}", DESCRIPTION[suffix]: origin(attribution)}
    return rendered(figure, suffix[1:], metadata=about)


def _header(attribution: Attribution) -> Header:
    """Everything but the tensors' values, as JSON can hold it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **{name: getattr(attribution, name) for name in (*WORDS, *TUPLES)},
        "target": vars(attribution.target),
        "options": encode(attribution.options),
        "provenance": encode(attribution.provenance),
        "dtypes": {name: str(x.dtype).removeprefix("torch.") for name, x in _own_tensors(attribution).items()},
        "streams": {name: _header(one) for name, one in attribution.streams.items()},
    }


def _attribution(header: Header, arrays: Arrays) -> Attribution:
    if header.get("format") != FORMAT:
        raise ValueError(UNMARKED)
    version = header["version"]
    if not _is_whole(version) or version < 1:
        raise ValueError(f"it is of version {version!r}, but versions are whole numbers from 1 on")
    if version > VERSION:
        raise ValueError(f"it is of version {version}, and this vitrail reads up to {VERSION}: upgrade it")
    streams = {}
    for name, part in header.get("streams", {}).items():  # version 1 has none
        start = f"{STREAM}{name}/"
        own = {key.removeprefix(start): x for key, x in arrays.items() if key.startswith(start)}
        streams[name] = _attribution(part, own)
    arrays = {name: x for name, x in arrays.items() if not name.startswith(STREAM)}
    if header["dtypes"].keys() != arrays.keys() or not arrays.keys() <= set(TENSORS):
        raise ValueError(f"it announces {', '.join(header['dtypes'])}, but holds {', '.join(arrays) or 'nothing'}")
    known: dict[str, Any] = {
        **{name: header[name] for name in WORDS},
        **{name: _tupled(header[name]) for name in TUPLES},
        **{name: _cast(name, arrays[name], dtype) for name, dtype in header["dtypes"].items()},
    }
    known |= {name: decode(header[name]) for name in ("options", "provenance")}
    target = {name: _tupled(value) for name, value in header["target"].items()}
    usual = {field.name: field.default for field in fields(Target)}
    check_fields(
        SimpleNamespace(**{**dict.fromkeys(TENSORS), **known, "target": SimpleNamespace(**{**usual, **target})})
    )
    return Attribution(**known, target=Target(**target), streams=streams)


def _cast(name: str, values: Tensor, dtype: Any) -> Tensor:  # noqa: ANN401
    """The values in the dtype they were saved from; one that would change them is refused."""
    if dtype not in DTYPES:
        raise ValueError(f"its {name} are said to be {dtype!r}, which is none of {', '.join(DTYPES)}")
    wanted = DTYPES[dtype]
    exact = wanted.is_floating_point or values.is_floating_point() == wanted.is_floating_point
    if not exact or (values.dtype is torch.bool) != (wanted is torch.bool):
        raise ValueError(f"its {name} are said to be {dtype}, but are {str(values.dtype).removeprefix('torch.')}")
    return values.to(wanted)


def _tupled(value: Any) -> Any:  # noqa: ANN401
    """The fields that are tuples by their type, which JSON reads as lists."""
    return tuple(_tupled(x) for x in value) if isinstance(value, list) else value


def _tensors(attribution: Attribution) -> Arrays:
    """All tensors: those of a stream by its name."""
    streams = {
        f"{STREAM}{name}/{key}": x for name, one in attribution.streams.items() for key, x in _tensors(one).items()
    }
    return {**_own_tensors(attribution), **streams}


def _own_tensors(attribution: Attribution) -> Arrays:
    found = {name: getattr(attribution, name) for name in TENSORS}
    return {name: x.detach().cpu() for name, x in found.items() if x is not None}


def to_json(attribution: Attribution) -> str:
    """Return the content of a `.json` file: everything, on one line."""
    values = {
        name: {"shape": list(x.shape), "values": x.flatten().tolist()} for name, x in _tensors(attribution).items()
    }
    return json_text({**_header(attribution), "tensors": values})


def _from_json(data: bytes) -> tuple[Header, Arrays]:
    header = _parsed(data)
    return header, {name: _array(name, x["values"], x["shape"]) for name, x in header.get("tensors", {}).items()}


def _parsed(data: bytes) -> Header:
    """Return the header in a JSON text; the words NaN and Infinity, which Python would take, are not JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f"it holds {word}, which is no number in JSON")

    header = json.loads(data, parse_constant=refuse)
    if not isinstance(header, dict):
        raise ValueError(UNMARKED)
    return header


def _array(name: str, values: list[Any], shape: list[int]) -> Tensor:
    """Python's floats are float64 and repeat themselves exactly; whole numbers stay whole."""
    if not all(isinstance(n, int) and n >= 0 for n in shape) or math.prod(shape) != len(values):
        raise ValueError(f"it has {len(values)} values for {name} of shape {shape}")
    return torch.from_numpy(np.array(values).reshape(shape))


def _to_npz(attribution: Attribution) -> bytes:
    sink, header = BytesIO(), json_text(_header(attribution)).encode()
    arrays: dict[str, Any] = {
        name: (x.float() if x.dtype == torch.bfloat16 else x).numpy()  # numpy has no bfloat16; float32 holds it exactly
        for name, x in _tensors(attribution).items()
    }
    np.savez_compressed(sink, **{HEADER: np.frombuffer(header, dtype=np.uint8)}, **arrays)
    return sink.getvalue()


def _from_npz(data: bytes) -> tuple[Header, Arrays]:
    with np.load(BytesIO(data), allow_pickle=False) as file:
        header = _parsed(file[HEADER].tobytes())
        return header, {name: torch.from_numpy(file[name]) for name in file.files if name != HEADER}


WRITERS: dict[str, Callable[[Attribution], bytes]] = {
    ".json": lambda attribution: to_json(attribution).encode(),
    ".npz": _to_npz,
}
READERS: dict[str, Callable[[bytes], tuple[Header, Arrays]]] = {".json": _from_json, ".npz": _from_npz}
