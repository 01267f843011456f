"""The files of the embedded models, checked against their hashes as they are read."""

import hashlib
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from vitrail.errors import ModelError

WEIGHTS: Traversable = files("vitrail.models.zoo") / "weights"
HASHES = "sha256.json"
REPAIR = "Install vitrail again."


def read_checked(path: str) -> bytes:
    """The content of a shipped file such as `photo/config.json`, if it is the one that was shipped."""
    content, expected = _read(path), _hashes().get(path)
    if expected is None:
        raise ModelError(f"{HASHES} in {WEIGHTS} names no file {path}: it is not the one that was shipped. {REPAIR}")
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ModelError(
            f"{WEIGHTS / path} is corrupt or cut short: its {len(content):,} bytes have the SHA-256 {found[:16]}…, "
            f"but {expected[:16]}… was shipped. {REPAIR}"
        )
    return content


def read_json(path: str) -> dict[str, Any]:
    """A shipped JSON file."""
    return json.loads(read_checked(path))


def _hashes() -> dict[str, str]:
    try:
        table = json.loads(_read(HASHES))
    except ValueError as error:
        raise ModelError(f"{WEIGHTS / HASHES} is corrupt: {error}. {REPAIR}") from error
    if not isinstance(table, dict):
        raise ModelError(f"{WEIGHTS / HASHES} is corrupt: it holds no table of hashes. {REPAIR}")
    return table


def _read(path: str) -> bytes:
    try:
        return WEIGHTS.joinpath(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{WEIGHTS / path} cannot be read ({error.strerror}). {REPAIR}") from error
