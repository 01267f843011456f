"""Results in one SQLite file: a row for each run, example and metric, one transaction for each finished unit.

A run is everything that decides a number, hashed into its identity: model weights, data set, method with all its
options, protocol, precision and library versions. A kill at any moment leaves whole units or nothing of them. One
process writes at a time, and the operating system releases its lock if it is killed.

A data set may be measured in parts, so its content cannot be one hash that is known from the start. The file keeps a
hash of each example that was measured. A run continues the version of the data set whose examples all have their
present content; where one of them changed, it starts a new version.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from errno import ENOENT
from itertools import count, groupby
from operator import itemgetter
from os import strerror
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vitrail.errors import OptionError, OutputError
from vitrail.evaluate.bench.plan import ResultRow


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a results file, or say that another process does."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder, but results go into one file. Choose another with -o.")
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=0)
    try:
        if not path.parent.is_dir():  # filelock would make the folder
            raise FileNotFoundError(ENOENT, strerror(ENOENT), str(path.parent))
        lock.acquire()
    except Timeout as error:
        raise OutputError(
            f"another process is writing to {path}. Wait for it, or write to another file with -o; reading it with "
            "bench table is possible at any time."
        ) from error
    except OSError as error:
        raise OutputError(
            f"{lock.lock_file} cannot be written: {error.strerror}. Choose another file with -o."
        ) from error
    try:
        yield
    finally:
        lock.release()


VERSION = 0  # of the tables, kept as user_version
FORMAT = 0x56495452  # "VITR": tells our files from other databases
SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, about TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    run TEXT NOT NULL REFERENCES runs (id), example TEXT NOT NULL, metric TEXT NOT NULL, value TEXT, skipped TEXT,
    PRIMARY KEY (run, example, metric), CHECK ((value IS NULL) != (skipped IS NULL))
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contents (
    data TEXT NOT NULL, version TEXT NOT NULL, example TEXT NOT NULL, hash TEXT NOT NULL,
    PRIMARY KEY (data, version, example)
) WITHOUT ROWID;
"""
PATIENCE = 60.0  # seconds that a reader and the writer wait for each other
About = Mapping[str, Any]
PARTS = frozenset({"model", "data", "protocol", "method"})
"""What every run says of itself."""


def identity(about: About) -> str:
    """The hash of everything that decides a run's numbers."""
    return hashlib.sha256(_canonical(about).encode()).hexdigest()[:24]


def _canonical(about: About) -> str:
    try:
        return json.dumps(about, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise OptionError(f"an option is NaN or infinite, which a results file cannot hold: {about}.") from error


class Store:
    """An open results file. Only `writing` gives one that may be added to."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection

    def add_run(self, about: About) -> str:
        """Keep what a run is, and give its identity."""
        name = identity(about)
        self._write("INSERT INTO runs VALUES (?, ?) ON CONFLICT DO NOTHING", [(name, _canonical(about))])
        return name

    def data_version(self, data: str, contents: Mapping[str, str], now: Callable[[str], str | None]) -> str:
        """The version of a data set that holds these examples; one that is there already if nothing in it changed.

        Args:
            data: what the set is apart from the content of its examples.
            contents: example -> hash, of the examples that are to be measured.
            now: the hash of any example of the set as it is now, None where it is no longer part of it.
        """

        def unchanged(kept: Mapping[str, str]) -> bool:
            if any(contents.get(key, known) != known for key, known in kept.items()):  # first those at hand
                return False
            return all(key in contents or now(key) == known for key, known in kept.items())

        found = self._read(
            "SELECT version FROM contents WHERE data = ? GROUP BY version ORDER BY COUNT(*) DESC, version", data
        )
        versions = [version for (version,) in found]
        for version in versions:  # those with most examples first
            kept = dict(self._read("SELECT example, hash FROM contents WHERE data = ? AND version = ?", data, version))
            if unchanged(kept):
                break
        else:
            # The name depends on the content only, so that two files made by the same commands are the same.
            names = (identity({"data": data, "contents": contents, "number": n})[:16] for n in count())
            version, kept = next(name for name in names if name not in versions), {}
        new = [(data, version, key, known) for key, known in sorted(contents.items()) if key not in kept]
        self._write("INSERT INTO contents VALUES (?, ?, ?, ?)", new)
        return version

    def add(self, rows: Sequence[ResultRow]) -> None:
        """Write all rows of a finished unit, or none; existing rows are not changed."""

        def value(row: ResultRow) -> str | None:
            return None if row.value is None else json.dumps(row.value, sort_keys=True, allow_nan=False)

        self._write(
            "INSERT INTO results VALUES (?, ?, ?, ?, ?) ON CONFLICT (run, example, metric) DO NOTHING",
            [(row.run, row.key, row.metric, value(row), row.skipped) for row in rows],
        )

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """All rows in one transaction."""
        try:
            with self.connection:
                self.connection.executemany(statement, rows)
        except sqlite3.OperationalError as error:
            what = "the disk is full" if "full" in str(error) else f"the results could not be written ({error})"
            raise OutputError(
                f"{what}. Everything finished so far is kept in {self.path}; the same command goes on from there."
            ) from error

    def _read(self, query: str, *values: str) -> sqlite3.Cursor:
        return self.connection.execute(query, values)

    def done(self, run: str, keys: Sequence[str]) -> set[tuple[str, str]]:
        """The examples and metrics that are there, computed or skipped."""
        query = f"SELECT example, metric FROM results WHERE run = ? AND example IN ({','.join('?' * len(keys))})"
        return set(self._read(query, run, *keys))

    def runs(self) -> dict[str, dict[str, Any]]:
        """Every run with what it is, in an order that does not depend on when it was made."""
        runs = {name: json.loads(about) for name, about in self._read("SELECT id, about FROM runs ORDER BY id")}
        for name, about in runs.items():
            if not isinstance(about, dict) or not about.keys() >= PARTS:
                raise OutputError(f"{self.path} is damaged: its run {name!r} does not say what it is.")
        return runs

    def metrics(self, run: str) -> set[str]:
        """Return the metrics that were measured or skipped."""
        return {name for (name,) in self._read("SELECT DISTINCT metric FROM results WHERE run = ?", run)}

    def examples(self, run: str, *, skipped: bool = False) -> set[str]:
        """The examples that have a result, or that lack one."""
        column = "skipped" if skipped else "value"
        query = f"SELECT DISTINCT example FROM results WHERE run = ? AND {column} IS NOT NULL"
        return {example for (example,) in self._read(query, run)}

    def reasons(self, run: str) -> dict[str, int]:
        """Return the reasons for missing results, each with its count."""
        query = "SELECT skipped, COUNT(*) FROM results WHERE run = ? AND skipped IS NOT NULL GROUP BY skipped"
        return dict(self._read(query, run))

    def values(self, run: str, metrics: Sequence[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """By example, the values of these metrics, of examples that have them all; read as they are asked for."""
        marks = ",".join("?" * len(metrics))
        found = self._read(
            f"SELECT example, metric, value FROM results WHERE run = ? AND metric IN ({marks}) AND value IS NOT NULL "
            "ORDER BY example",
            run,
            *metrics,
        )
        for example, rows in groupby(found, key=itemgetter(0)):
            by_metric = {metric: value for _, metric, value in rows}
            if len(by_metric) == len(metrics):
                yield example, tuple(json.loads(by_metric[metric]) for metric in metrics)

    def results(self, run: str) -> Iterator[tuple[str, str, Any, str | None]]:
        """Example, metric, value and reason for being skipped, by example."""
        query = "SELECT example, metric, value, skipped FROM results WHERE run = ? ORDER BY example, metric"
        for example, metric, value, skipped in self._read(query, run):
            yield example, metric, None if value is None else json.loads(value), skipped


@contextmanager
def writing(path: Path) -> Iterator[Store]:
    """The results file, made if it is not there, locked against other writers."""
    if path.is_file():  # a file of another kind is refused before anything is written beside it
        _connect(path, create=False).close()
    with locked(path), closing(_connect(path, create=True)) as connection:
        yield Store(path, connection)


@contextmanager
def reading(path: Path) -> Iterator[Store]:
    """A results file to look at, also while it is being written."""
    if not path.is_file():
        raise OutputError(f"there are no results at {path}. vitrail bench run writes them.")
    with closing(_connect(path, create=False)) as connection:
        try:
            (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'results'").fetchone()
            if not tables:
                raise OutputError(f"{path} holds no results yet. vitrail bench run writes them.")
            yield Store(path, connection)
        except (sqlite3.Error, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise OutputError(f"{path} is damaged and cannot be read: {error}. Restore it, or run again.") from error


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        # A reader may have to undo what a killed writer left half written, so it is not opened read-only.
        mode = "rwc" if create else "rw"
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=PATIENCE)
        (found,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and found != FORMAT:
            raise OutputError(f"{path} is a database, but not of vitrail's results. Choose another file.")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise OutputError(
                f"{path} was written by a newer vitrail (format {version}). Install that, or choose another file."
            )
        if create and not tables:
            connection.execute(f"PRAGMA application_id = {FORMAT}")
        if create:  # also for a file of an earlier version, which lacks a table
            connection.executescript(SCHEMA)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if connection is not None:
            connection.close()
        raise OutputError(f"{path} cannot be opened as a results file: {error}.") from error
    return connection
