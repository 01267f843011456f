"""One writer at a time: a lock on a file beside the results, let go by the system even if the process is killed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from vitrail.errors import OutputError


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a results file, or say that another process does."""
    place = path.with_name(path.name + ".lock")
    try:
        file = place.open("a+b")
    except OSError as error:
        raise OutputError(f"{place} cannot be written: {error.strerror}. Choose another file with -o.") from error
    with file:
        if not _take(file):
            raise OutputError(
                f"another process is writing to {path}. Wait for it, or write to another file with -o; reading it with "
                "bench table is possible at any time."
            )
        yield


def _take(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        with contextlib.suppress(OSError):
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
            return True
        return False
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
