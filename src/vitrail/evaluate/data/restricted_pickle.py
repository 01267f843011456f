"""Pickles that can hold nothing but numbers, strings, plain containers and 8-bit arrays.

A pickle names functions to call, so opening one with `pickle.load` runs whatever its author wished. Here every name is
looked up in a table of four harmless stand-ins; NumPy's own code never runs on what the file says.
"""

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np

from vitrail.errors import InputError
from vitrail.evaluate.data.files import one_line


class _Kind:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str | bytes, *_rest: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands in for numpy.ndarray."""

    value: np.ndarray | None = None

    def __init__(self, *_args: object) -> None:
        pass

    def __setstate__(self, state: tuple) -> None:
        _version, shape, kind, columns_first, raw = state
        if not isinstance(kind, _Kind) or kind.code != "u1" or columns_first:
            raise pickle.UnpicklingError("it holds an array that is not of plain bytes")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, by which Python 3 writes bytes for Python 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:  # noqa: ANN401
        if (module_name, global_name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which data does not need")
        return ADMITTED[module_name, global_name]


def read_pickled_table(data: bytes, where: object) -> dict[str, Any]:
    """A pickled dict of lists, strings and 8-bit arrays, its keys as str."""
    try:
        table = _Unpickler(BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{where} is refused as a pickle: {one_line(error)}") from error
    if not isinstance(table, dict):
        raise InputError(f"{where} holds a {type(table).__name__}, not a table.")
    return {_text(key): value.value if isinstance(value, _Array) else value for key, value in table.items()}


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
