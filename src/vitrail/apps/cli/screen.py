"""The output of the command line: results to stdout, everything else to stderr, errors in one line.

On a terminal tables are drawn and progress is shown. In a pipe a table is lines of tab-separated values, and stderr
holds warnings, errors and the names of written files only.
"""

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import vitrail
from vitrail.apps.cli import INTERRUPTED
from vitrail.errors import OptionError, VitrailError, VitrailWarning, as_path

P = ParamSpec("P")
OWN = str(Path(vitrail.__file__).parent)


def out() -> Console:
    """Return a console for results. Made anew each time, since tests and pipes swap the stream."""
    return Console(highlight=False)


def plain(text: object) -> str:
    """The text on one line, without characters that a terminal obeys."""
    return "".join(c if c.isprintable() else " " if c.isspace() else f"\\x{ord(c):02x}" for c in str(text))


def note(message: str) -> None:
    """One line on stderr."""
    line = " ".join(plain(message).split())
    typer.echo(line.encode(errors="backslashreplace").decode(), err=True)


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """A table: drawn on a terminal, else a line of names and a line for each row, separated by tabs."""
    screen = out()
    if not screen.is_terminal:
        for row in ([column or "note" for column in columns], *rows):
            typer.echo("\t".join(plain(cell) for cell in row))
        return
    table = Table(*columns, title=title or None)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row))
    screen.print(table)


def show_line(*parts: str | tuple[str, str]) -> None:
    """A line of text; a part may come with a style."""
    text = Text.assemble(*((plain(p), "") if isinstance(p, str) else (plain(p[0]), p[1]) for p in parts))
    out().print(text, soft_wrap=True)


@contextmanager
def busy(message: str) -> Iterator[None]:
    """Say on a terminal what is going on, from the first moment; nothing in a pipe."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(Text(plain(message))):
        yield


@contextmanager
def counted(message: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, moved by calls with how many are done and how many there are."""
    from rich.progress import Progress

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(message, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with deliberate errors in one line and exit code 1, or with the traceback if `debug` is set."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _short_warnings(), _remarks_of_results():
                _check_working_folder()
                _check_readable(kwargs)
                command(*args, **kwargs)
        except Exception as error:
            said = str(error) if isinstance(error, VitrailError) else _said_by_model(error) or _said_by_system(error)
            if kwargs.get("debug") or not said:
                raise
            note(f"error: {said}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            note("stopped")
            raise typer.Exit(INTERRUPTED) from error

    return run


def _said_by_model(error: Exception) -> str:
    """Return the error that the model itself raised while it ran, with its inputs; empty for other errors."""
    notes = getattr(error, "__notes__", ())
    return f"{type(error).__name__}: {error} {notes[-1]}" if notes and notes[-1].startswith("Raised by ") else ""


def _said_by_system(error: Exception) -> str:
    """Return the file system's message about a name, such as one that is too long; empty for other errors."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return ""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
    return f"{name[:LONGEST_SHOWN]}{'...' if len(name) > LONGEST_SHOWN else ''} cannot be used: {error.strerror}."


LONGEST_SHOWN = 80
"""Letters of a name in an error."""


def close_output() -> None:
    """Drop what is still to be printed: the reader has closed the pipe, and writing must not fail again at exit."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _check_working_folder() -> None:
    """Refuse to run in a folder that was deleted: libraries fail there, and some end the process."""
    try:
        os.getcwd()
    except OSError as error:
        raise OptionError(f"the working folder is gone ({error.strerror}). Change to another one: cd ~") from error


def _check_readable(given: dict[str, Any]) -> None:
    """Refuse arguments that hold NUL, or bytes that are not UTF-8, which Python keeps as lone surrogates."""
    for name, value in given.items():
        for text in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(text, Path):
                as_path(text, f"the file of --{name.replace('_', '-')}")
            if isinstance(text, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
                name = "INPUT" if name == "given" else f"--{name.replace('_', '-')}"
                raise OptionError(f"{name} holds bytes that are not UTF-8 text: {plain(text[:40])!r}.")


@contextmanager
def _remarks_of_results() -> Iterator[None]:
    """Print what the library logs, such as a method that replaces another, as notes below the result it belongs to."""
    logger, kept = logging.getLogger("vitrail"), _KeptRecords()
    handlers, passed_on = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [kept], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, passed_on
    for message in dict.fromkeys(kept.messages):
        note(f"note: {message}")


class _KeptRecords(logging.Handler):
    """Keeps the messages of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.messages.append(record.getMessage())


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Our own warnings in one line each, those of other libraries not at all."""

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: object, **more: object) -> None:
        if filename.startswith(OWN) or issubclass(category, VitrailWarning):
            note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
