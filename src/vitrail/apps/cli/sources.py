"""What is to be explained: files, folders and texts from the command line, as samples of a model."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import InputError
from vitrail.models.loading import Loaded, Sample
from vitrail.models.loading.loaded import is_blank


@dataclass(frozen=True)
class Source:
    """The inputs named on the command line."""

    given: str | None = None
    pair: str | None = None
    question: str | None = None
    context: str | None = None
    squash: bool = False

    @property
    def folder(self) -> Path | None:
        """The folder of images, if one is named."""
        return Path(self.given) if self.given is not None and os.path.isdir(self.given) else None


def sample_of(source: Source, loaded: Loaded) -> Sample:
    """The one input that is named, as the model takes it."""
    return READERS[loaded.task](source, loaded)


def check_source(source: Source) -> None:
    """Refuse what no model could read, before one is loaded."""
    texts = {"--pair": source.pair, "--question": source.question, "--context": source.context}
    for name, text in {"the input": source.given, **texts}.items():
        if text is not None and is_blank(text):
            raise InputError(f"{name} is empty: there is nothing to explain.")
    if source.given is None and source.question is None:
        raise InputError("there is nothing to explain: name an image, a folder of images or a text.")
    path = Path(source.given or "")
    known = path.suffix.lower() in {".txt", ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
    if known and "\n" not in str(path) and not path.exists():
        raise InputError(f"there is no file {path}. Check its name and folder.")


def _image(source: Source, loaded: Loaded) -> Sample:
    from vitrail.models.loading.images import open_image

    _refuse(loaded, pair=source.pair, question=source.question, context=source.context)
    return loaded.image(open_image(Path(_given(source, "an image"))), squash=source.squash)


def _sequence(source: Source, loaded: Loaded) -> Sample:
    _refuse(loaded, question=source.question, context=source.context)
    text = read_text(_given(source, "a text, a .txt file or - for stdin"))
    return loaded.text(text, None if source.pair is None else read_text(source.pair))


def _causal(source: Source, loaded: Loaded) -> Sample:
    _refuse(loaded, pair=source.pair)
    return _sequence(source, loaded)


def _question(source: Source, loaded: Loaded) -> Sample:
    _refuse(loaded, pair=source.pair)
    context = source.context if source.context is not None else source.given
    if source.question is None or context is None:
        raise InputError(f"{loaded.name} answers questions: give --question TEXT and --context TEXT.")
    return loaded.text(read_text(source.question), read_text(context))


READERS = {"image": _image, "sequence": _sequence, "causal": _causal, "question": _question}


def _given(source: Source, what: str) -> str:
    if source.given is None:
        raise InputError(f"there is nothing to explain: name {what}.")
    return source.given


def _refuse(loaded: Loaded, **given: str | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} does not apply to {loaded.name}, which is a model for one {loaded.kind}.")


def read_text(given: str) -> str:
    """The text itself, the content of a `.txt` file, or what comes from stdin for `-`."""
    path = Path(given)
    if given == "-":
        return _checked(sys.stdin.read(), "stdin")
    if os.path.isdir(given):
        raise InputError(f"{given} is a folder, but the model reads text: give a text or a .txt file.")
    if path.suffix == ".txt" and "\n" not in given:
        try:
            return _checked(path.read_text(encoding="utf-8-sig"), given)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(f"{given} cannot be read as text: {reason}.") from error
    if os.path.isfile(given):
        raise InputError(f"{given} is a file that is not .txt, but the model reads text.")
    return _checked(given, "the argument")


def _checked(text: str, where: str) -> str:
    if is_blank(text):
        raise InputError(f"the text from {where} is empty: there is nothing to explain.")
    return text.strip()


def images_in(folder: Path) -> list[Path]:
    """The images right inside a folder, by name; other files and hidden ones are passed over."""
    from vitrail.models.loading.images import images_in as listed

    return listed(folder)
