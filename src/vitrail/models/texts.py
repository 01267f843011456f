"""Checks of plain text, shared by the command line, the tokenizers and the readers of files. Without torch."""

import unicodedata

from vitrail.errors import InputError


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: white space, control characters and zero-width ones only."""
    return all(letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf") for letter in text)


def check_text(text: object, where: str = "the text") -> str:
    """The text without white space around it, or an error that says why it cannot be read.

    Args:
        where: what the text is, or where it comes from.
    """
    if not isinstance(text, str):
        raise InputError(f"{where} is no text but {type(text).__name__}.")
    if is_blank(text):
        raise InputError(f"{where} is empty: there is nothing to explain.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{where} holds half a character (a lone surrogate). Was it decoded as UTF-8?")
    return text.strip()
