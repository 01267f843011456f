"""The command line: `vitrail --help` is its manual.

A command is one function here and one line in the table of `app`. Its module must not import torch, numpy or scipy, so
that help, completion and usage errors answer at once: a command imports what computes inside its function, after its
checks. `screen` and `options` are light as well; `session` and `show` import torch.
"""

import os
import signal
import sys
from types import FrameType

NARROWEST = 20
INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as shells have it."""


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    _check_surroundings()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the parent process ignores Ctrl-C
        signal.signal(signal.SIGINT, _stop)
    try:
        from vitrail.apps.cli.app import app
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in {"typer", "rich"}:
            raise
        sys.exit(f"error: the command line needs the package {error.name}: pip install 'vitrail[cli]'")
    app()


def _stop(_: int, frame: FrameType | None) -> None:
    """Ctrl-C: leave at once while a library is imported, since its code may make an error of its own of it or abort."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"stopped\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _check_surroundings() -> None:
    """Let text be printed whatever the terminal claims to be able to show."""
    for stream in (sys.stdout, sys.stderr):  # None where it was closed
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    width = os.environ.get("COLUMNS", "")
    if not (width.isdecimal() and int(width) >= NARROWEST):  # 0 in some containers, where nothing would be printed
        os.environ.pop("COLUMNS", None)


__all__ = ["main"]
