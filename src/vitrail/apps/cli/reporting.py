"""How the command line speaks: results to stdout, everything else to stderr, errors in one line."""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec

import typer
from rich.console import Console

import vitrail
from vitrail.errors import VitrailError

P = ParamSpec("P")
OWN = str(Path(vitrail.__file__).parent)


def out() -> Console:
    """Where results go. Made anew each time, since tests and pipes swap the stream."""
    return Console(highlight=False)


def note(message: str) -> None:
    """One line for the person at the terminal, not for the next program in a pipe."""
    typer.echo(" ".join(message.split()), err=True)


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with deliberate errors told in one line and exit code 1 unless `debug` asks for the traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _short_warnings():
                command(*args, **kwargs)
        except VitrailError as error:
            if kwargs.get("debug"):
                raise
            note(f"error: {error}")
            raise typer.Exit(1) from error

    return run


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Our own warnings in one line each, those of other libraries not at all."""

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: object, **more: object) -> None:
        if filename.startswith(OWN):
            note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
