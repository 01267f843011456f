"""Every exception Vitrail raises on purpose.

VitrailError
├── AnatomyError (LookupError)       the model's parts could not be named
├── SeamError (RuntimeError)         no attention call could be intercepted
├── RuleError (NotImplementedError)  no rule says how relevance passes through an operation
├── InputError (ValueError)          inputs that cannot be explained as they are
├── NoSampleError (IndexError)       a sample that the batch does not have
├── TargetError (ValueError)         a target the model does not have
├── MethodError (KeyError)           an unknown method
├── OptionError (ValueError)         an unknown option, preset or option value
├── MissingTensorError (LookupError) a method reads what was not recorded
├── MissingExtraError (ImportError)  an optional dependency is absent
├── ModelError (ValueError)          a model that cannot be loaded
├── OutOfMemoryError (MemoryError)   attention maps that do not fit
├── EngineError (RuntimeError)       a cluster or its workers failed
└── OutputError (OSError)            a result that cannot be written or read
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import TypeGuard


def one_line(error: BaseException | str) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


class VitrailError(Exception):
    """The root of every deliberate error; its message says what to do next."""

    def __str__(self) -> str:
        """The message as written, also where the built-in parent would quote it (KeyError)."""
        return str(self.args[0]) if self.args else ""


class VitrailWarning(UserWarning):
    """A result that is right but may not be what was meant."""


class AnatomyError(VitrailError, LookupError):
    """The parts of a model could not be named."""


class SeamError(VitrailError, RuntimeError):
    """No attention call could be intercepted, or it cannot be matched to a block."""


class NoAttentionError(SeamError):
    """No attention was seen in a model."""


class OtherBlocksError(SeamError):
    """Other blocks run than were found on earlier inputs of the same form."""


class CutGraphError(SeamError):
    """Attention, or the whole model, has no gradient."""


class RuleError(VitrailError, NotImplementedError):
    """No rule says how relevance passes through an operation of the model."""


class InputError(VitrailError, ValueError):
    """The inputs cannot be explained as they are."""


class NoSampleError(VitrailError, IndexError):
    """The batch has no such sample."""


class TargetError(VitrailError, ValueError):
    """The model has no such target."""


class MethodError(VitrailError, KeyError):
    """There is no method of this name."""


class OptionError(VitrailError, ValueError):
    """A method has no such option, preset or option value."""


class MissingTensorError(VitrailError, LookupError):
    """A method reads a tensor that was not recorded."""


class MissingExtraError(VitrailError, ImportError):
    """An optional dependency is absent."""


class ModelError(VitrailError, ValueError):
    """A model could not be loaded."""


class OutOfMemoryError(VitrailError, MemoryError):
    """The attention maps of a layer do not fit into memory as they were asked for."""


class EngineError(VitrailError, RuntimeError):
    """A cluster could not be reached, or its workers failed."""


class OutputError(VitrailError, OSError):
    """A result could not be written or read."""


def shortened(given: object, length: int = 80) -> str:
    """Return the given value, quoted, and cut if it is long."""
    text = repr(given)
    return text if len(text) <= length else f"{text[: length - 3]}..."


LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Bytes that file systems take in a name and in a whole path."""


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for a whole number of Python or NumPy; a truth value is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_path(given: object, what: str) -> Path:
    """The path that was given.

    Args:
        what: what lies there, in words, such as `a results file`.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"{what} must be given by its path, not by {type(given).__name__}.")
    name = os.fsdecode(given)
    if "\0" in name:
        raise InputError(f"{what} cannot be at {shortened(name)}: no name holds the character NUL.")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError as error:
        raise InputError(f"{what} cannot be at {shortened(name)}: it holds half of a letter (a surrogate).") from error
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(os.fsencode(os.sep)))) > LONGEST_NAME:
        raise InputError(f"{what} cannot be at {shortened(name)}: the name is longer than file systems take.")
    return Path(name)


def suggest(wrong: object, known: Iterable[str]) -> str:
    """A sentence that names the close spellings of a wrong word, or all known ones."""
    names = sorted(known)
    by_key = {name.casefold(): name for name in names}
    near = [by_key[key] for key in get_close_matches(str(wrong)[:200].casefold(), by_key, n=3)]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Known: {', '.join(names)}." if names else "There are none."
