"""Options that several commands share, their completion, and checks of what a user wrote.

An option of one command is declared in that command. The functions `*_option` put an option into a part of the help.
Nothing here imports torch, so a wrong name is answered at once, before anything is loaded.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

import vitrail
from vitrail.errors import InputError, ModelError, OptionError, OutputError, VitrailError, suggest
from vitrail.methods import DEFAULT_METHOD, METHODS, PREFERRED, Spec
from vitrail.methods.table import import_plugins
from vitrail.models import CLASSES, MODELS
from vitrail.models.folders import PICTURES, TEXTS
from vitrail.models.texts import check_text, decode_text, is_blank
from vitrail.models.texts import read_text as read_file

ENDINGS = (".png", ".pdf", ".html", ".json", ".npz")
"""What one explanation can be written as."""
STDOUT = Path("-")
"""Stands for stdout, which takes JSON."""
PRESETS = tuple(
    dict.fromkeys(["recommended", *(preset for name in METHODS.built_in for preset in METHODS[name].presets)])
)
FILES = {".wav", *TEXTS, *PICTURES}
LONGEST_NAME = 255


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


PICTURES_ONLY = "photo"
"""The embedded model that reads pictures: what is no file is refused before the model is loaded."""


def _import_plugins(names: list[str] | None) -> None:
    try:
        import_plugins(names or [])
    except VitrailError as error:
        raise typer.BadParameter(str(error)) from error


Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="MODULE", callback=_import_plugins, is_eager=True, expose_value=False,
        help="A module that registers methods of yours, or its file.",
    ),
]  # fmt: skip


def check_source(source: Source, model: str = "") -> None:
    """Refuse what no model could read, and what this embedded one does not, before a model is loaded."""
    texts = {"--pair": source.pair, "--question": source.question, "--context": source.context}
    for name, text in {"the input": source.given, **texts}.items():
        if text is not None and is_blank(text):
            raise InputError(f"{name} is empty: there is nothing to explain.")
    if source.given is None and source.question is None:
        raise InputError("there is nothing to explain: name an image, a folder of images or a text.")
    if source.given is not None and looks_like_file(source.given) and not os.path.exists(source.given):
        raise InputError(f"there is no file {source.given}. Check its name and folder.")
    given = source.given or "-"
    pictures = model == PICTURES_ONLY and not os.path.exists(model)  # a folder of that name is another model
    if pictures and given != "-" and "://" not in given and not os.path.lexists(given):
        name = given if len(given) <= LONGEST_NAME else f"{given[:80]}..."
        raise InputError(f"there is no image at {name}; {model} reads pictures. For text pass -m sentiment.")
    if (folder := source.folder) is not None and not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{folder} cannot be read: no permission.")


def check_model(name: str) -> None:
    """Refuse a misspelt name of an embedded model at once, without the libraries that know all other names."""
    if name in MODELS or os.path.exists(name) or "/" in name:
        return
    near = get_close_matches(name.strip().casefold(), MODELS, n=1, cutoff=0.75)
    if near:
        raise ModelError(f"there is no model {name!r}. Did you mean {near[0]}? A Hugging Face id is owner/name.")


def looks_like_file(text: str) -> bool:
    """Return True if a text is the name of a file; a sentence that ends in one ("I saved it to notes.txt") is not."""
    path = Path(text)
    if path.suffix.lower() not in FILES:
        return False
    single = len(text) <= LONGEST_NAME * 4 and "\n" not in text and len(path.name) <= LONGEST_NAME
    return os.path.exists(text) or (single and len(text.split()) <= 2)


def read_text(given: str) -> str:
    """The text itself, the content of a `.txt` file, or what comes from stdin for `-`."""
    import sys

    if given == "-":
        if sys.stdin is None:
            raise InputError("stdin is closed: there is no text to read from it.")
        return check_text(decode_text(sys.stdin.buffer.read(), "stdin"), "stdin")
    if os.path.isdir(given):
        raise InputError(f"{given} is a folder, but the model reads text: give a text or a .txt file.")
    if looks_like_file(given) and Path(given).suffix.lower() == ".txt":
        return check_text(read_file(Path(given)), given)
    if os.path.isfile(given):
        raise InputError(f"{given} is a file that is not .txt, but the model reads text.")
    return check_text(given, "the argument")


def check_presets(specs: Sequence[Spec], preset: str) -> None:
    """Raise if a method that is named has no such preset."""
    if not specs and preset not in PRESETS:
        raise OptionError(f"no method has a preset {preset!r}. {suggest(preset, PRESETS)}")
    for name, given in specs:
        entry = METHODS[PREFERRED if name == DEFAULT_METHOD else name]
        wanted = given.get("preset", preset)
        if name != DEFAULT_METHOD or wanted not in PRESETS:
            entry.preset(wanted)


def check_file(path: Path | None, endings: Sequence[str] = ENDINGS) -> None:
    """Raise unless a file of a known kind can be written here; None and stdout are no files."""
    if path is None or path == STDOUT:
        return
    _check_name(path)
    if path.is_dir():
        raise OutputError(f"{path} is a folder: name a file in it, ending in {', '.join(endings)}.")
    if path.suffix.lower() not in endings:
        raise OutputError(f"{path} has no known ending. {suggest(path.suffix, endings)}")
    _check_writable(path)


def check_page(path: Path, what: str) -> None:
    """Raise unless an HTML page can be written here."""
    if path.suffix.lower() != ".html":
        raise OutputError(f"{path} is no .html file, but {what} is a page.")
    check_file(path)


def check_folder(path: Path | None) -> Path:
    """The folder that takes one picture for each image; it need not be there yet."""
    if path is None or path == STDOUT:
        raise OutputError("a folder of images needs a folder for the pictures: -o FOLDER.")
    _check_name(path)
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is a file, but a folder of images needs a folder for the pictures.")
    if not path.exists() and path.suffix.lower() in ENDINGS:
        raise OutputError(f"{path} names a file, but a folder of images needs a folder for the pictures.")
    _check_writable(path)
    return path


def _check_name(path: Path) -> None:
    """Raise if the name is longer than file systems take, before the file system is asked about it."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise OutputError(f"{path.name[:40]}... cannot be written: its name has more than {LONGEST_NAME} bytes.")


def _check_writable(path: Path) -> None:
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OutputError(f"{path} cannot be written: it is a link that leads to itself.")
    parent = path.absolute().parent if not path.absolute().parent.is_dir() else real.parent
    if not parent.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {parent}.")
    target = path if path.exists() else parent
    if not os.access(target, os.W_OK):
        raise OutputError(f"{path} cannot be written: no permission to write to {target}.")


def check_not_replaced(outputs: Iterable[Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Raise if a result would replace what it is made of, or another result, under whatever name or link.

    Args:
        outputs: the files that will be written.
        inputs: the files that are read. A folder stands for the files right inside it.
    """
    written = [path for path in outputs if path is not None and path != STDOUT]
    names: set[str] = set()
    for path in written:
        name = os.path.realpath(path).casefold()  # not resolve, which fails on links that lead to themselves
        if name in names:
            raise OutputError(f"{path} is named for two results: give each a file of its own.")
        names.add(name)
    there = [path for path in written if path.exists()]
    if not there:
        return
    read = {_place(file): file for given in inputs if given is not None for file in _files(given)}
    for path in there:
        if (same := read.get(_place(path))) is not None:
            what = "the input itself" if same == path else f"the same file as the input {same}"
            raise OutputError(f"{path} is {what}: the result would replace it. Choose another name with -o.")


def _files(given: Path | str) -> Iterator[Path]:
    """The files that something named on the command line may stand for; a text or a model's name is none."""
    try:
        path = Path(given)
        found = path.iterdir() if path.is_dir() else iter((path,))
        yield from (file for file in found if file.is_file())
    except (OSError, ValueError):  # a text that is no path: too long, or with a NUL
        return


def _place(path: Path) -> tuple[int, int]:
    """Return the device and inode of a file, the same for all its names and links."""
    found = path.stat()
    return found.st_dev, found.st_ino


def distinct(names: Sequence[str]) -> list[str]:
    """The names, those that are taken with a number after them; large and small letters count as the same."""
    taken = {name.casefold() for name in names}
    first: set[str] = set()
    found: list[str] = []
    for name in names:
        own = name
        if name.casefold() in first:
            own = next(new for n in count(2) if (new := f"{name}-{n}").casefold() not in taken)
        first.add(name.casefold())
        taken.add(own.casefold())
        found.append(own)
    return found


def completes(words: Iterable[str] | Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A function that gives the words that begin like what is typed so far; of methods, plug-ins have to be found."""
    known = words if callable(words) else list(words)
    return lambda incomplete: [word for word in (known() if callable(known) else known) if word.startswith(incomplete)]


def complete_class(ctx: typer.Context, incomplete: str) -> list[str]:
    """The classes of the embedded model that the command line names so far."""
    names = CLASSES.get(str(ctx.params.get("model")), ())
    return [name for name in names if name.casefold().startswith(incomplete.casefold())]


METHOD_NAMES = completes(lambda: [DEFAULT_METHOD, *METHODS])
MODEL_NAMES = completes(MODELS)

input_option = partial(typer.Option, rich_help_panel="What to explain")
aim_option = partial(typer.Option, rich_help_panel="Model and methods")
result_option = partial(typer.Option, rich_help_panel="Result")
model_option = partial(aim_option, "--model", "-m", autocompletion=MODEL_NAMES)
target_option = partial(aim_option, "--target", "-t", autocompletion=complete_class)
output_option = partial(result_option, "--output", "-o")

Given = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT",
        help="An image, a folder of images, a text, a [bold].txt[/] file, or [bold]-[/] for text from stdin.",
    ),
]
Pair = Annotated[str | None, input_option(help="The second text of a sentence pair.")]
Question = Annotated[
    str | None, input_option(help="The question, for a model that answers questions on a text or an image.")
]
Context = Annotated[str | None, input_option(help="The text that contains the answer; INPUT works too.")]
Squash = Annotated[bool, input_option("--squash", help="Resize images without cropping their borders.")]
_MODEL = "a timm name, a Hugging Face id or folder, or a .safetensors file"
Model = Annotated[str, model_option(help=f"photo, sentiment or lookup (inside the package), {_MODEL} with --arch.")]
LanguageModel = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="lookup (inside the package), or a Hugging Face id or folder of a causal language model.",
        autocompletion=completes(["lookup"]),
    ),
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"photo, sentiment, lookup, {_MODEL}.", autocompletion=MODEL_NAMES)
]
Arch = Annotated[
    str | None,
    aim_option(
        help="The timm architecture of a .safetensors file, such as vit_tiny_patch16_224. The number of classes is "
        "read from the weights."
    ),
]
Methods = Annotated[
    list[str] | None,
    aim_option(
        help='A name, or a name with options: "gradtoken(scheme=none, depth=2)". May be repeated.',
        autocompletion=METHOD_NAMES,
    ),
]
Targets = Annotated[
    list[str] | None,
    target_option(
        help="A class by name or index; for a language model the next token; none for what is predicted. May be "
        "repeated: every target is a row of the sheet."
    ),
]
Versus = Annotated[
    str | None,
    aim_option(help="Explain the evidence for the target against this class.", autocompletion=complete_class),
]
Preset = Annotated[
    str,
    aim_option(
        help="recommended, paper, or official (what the authors' code computes).", autocompletion=completes(PRESETS)
    ),
]
Device = Annotated[str, aim_option(help="cpu, cuda, cuda:1, mps.", autocompletion=completes(["cpu", "cuda", "mps"]))]
Output = Annotated[
    Path | None,
    output_option(
        help="A .png, .pdf or .html picture, or the numbers as .json or .npz (one file for each method and target, "
        "whose names become part of the file's), or - for JSON on stdout. For a folder of images, a folder. "
        "Default: the terminal."
    ),
]
Format = Annotated[
    str,
    result_option(
        "--format",
        help="For a folder of images: pictures, or parquet, a data set of all scores that a later run resumes.",
    ),
]
Engine = Annotated[str, result_option(help="For a data set: local, or ray for several workers.")]
_ADDRESS = "Address of a running cluster. Default: a new one on this machine."
_WORKERS = "Number of workers. Default: one for each CPU core, or for each GPU."
RayAddress = Annotated[str | None, result_option(help=_ADDRESS)]
RayWorkers = Annotated[int | None, result_option(help=_WORKERS, min=1)]
run_option = partial(typer.Option, rich_help_panel="How to run")
RunAddress = Annotated[str | None, run_option("--ray-address", help=_ADDRESS)]
RunWorkers = Annotated[int | None, run_option("--ray-workers", help=_WORKERS, min=1)]
Page = Annotated[Path, output_option(help="The page, a .html file.")]
Method = Annotated[str, aim_option(help="A method, with options if you like.", autocompletion=METHOD_NAMES)]
Signed = Annotated[
    str,
    aim_option(
        help="A signed method, with options if you like.",
        autocompletion=completes(lambda: [name for name, entry in METHODS.items() if entry.signed]),
    ),
]
Debug = Annotated[bool, result_option("--debug", help="Show the traceback of an error.")]


def _show_version(wanted: bool) -> bool:  # noqa: FBT001  (typer calls it so)
    if wanted:
        typer.echo(f"vitrail {vitrail.__version__}")
        raise typer.Exit
    return wanted


Version = Annotated[bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)]
