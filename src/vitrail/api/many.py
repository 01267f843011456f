"""Explain a whole data set: a Parquet data set of part files, written as they are done and resumable.

Loading, explaining and writing overlap: one thread loads batches ahead of the model, another writes rows. Every part
file holds the rows of one range of inputs. It is written under another name and renamed when it is whole, so a run that
was killed leaves whole parts only, and the next run makes those that are missing.
"""

import hashlib
import json
import os
import queue
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from vitrail.api.explainer import Explainer
from vitrail.attribution import Attribution, versions
from vitrail.capture.provenance import fingerprint
from vitrail.errors import InputError, MissingExtraError, OptionError, as_path
from vitrail.methods import DEFAULT_METHOD
from vitrail.models.folders import images_in
from vitrail.models.inputs import read_inputs
from vitrail.models.taking import taken
from vitrail.targets import AnyTarget

if TYPE_CHECKING:
    from vitrail.evaluate.bench.engines import Engine

T = TypeVar("T")
Inputs = Tensor | Mapping[str, Any]
Row = dict[str, Any]
MANIFEST = "_manifest.json"
"""Readers of Parquet data sets leave out files whose names begin so."""
AHEAD, BEHIND = 2, 4
"""Batches that are loaded before they are needed, and parts that wait to be written."""


@dataclass(frozen=True)
class Batch:
    """Inputs that are loaded when they are needed: a run that is resumed does not load what it has explained.

    Args:
        names: one for each input.
        load: gives the inputs.
        places: where each input lies and all else that decides it; another place is another run.
    """

    names: Sequence[str]
    load: Callable[[], Inputs]
    places: Sequence[str] = ()


@dataclass(frozen=True)
class ExplainedDataSet:
    """A data set of explanations on disk.

    Args:
        folder: where its part files lie.
        inputs: how many inputs it holds.
        explained: how many of them were explained in this run.
    """

    folder: Path
    inputs: int
    explained: int

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the run: what was explained, and by which method."""
        return json.loads((self.folder / MANIFEST).read_text())

    def table(self) -> Any:  # noqa: ANN401
        """All rows in order, as a table of pyarrow."""
        _, parquet = _pyarrow()
        return parquet.read_table(self.folder).sort_by("index")


def picture_batches(
    folder: str | Path | Sequence[Path], preprocess: Callable[[Any], Inputs], *, size: int = 32, preparation: str = ""
) -> list[Batch]:
    """The pictures of a folder as batches for `explain_many`, in the order of their names, each opened when needed.

    Args:
        folder: or the paths of pictures.
        preprocess: takes a picture of Pillow and gives what the model reads: `[3, h, w]`, `[1, 3, h, w]`, or a mapping
            of such.
        size: how many pictures a batch holds.
        preparation: what `preprocess` does, in words: a run that was prepared otherwise is not resumed. Nor is one
            whose files changed since.
    """
    from vitrail.models.loading.images import open_image  # Pillow is an extra

    paths = images_in(as_path(folder, "a folder of pictures")) if isinstance(folder, (str, Path)) else list(folder)

    def load(some: Sequence[Path]) -> Inputs:
        return _together([preprocess(open_image(path)) for path in some])

    def place(path: Path) -> str:
        stored = path.stat()
        return f"{path.resolve()} {stored.st_size} {stored.st_mtime_ns} {preparation}"

    groups = [paths[start : start + size] for start in range(0, len(paths), size)]
    return [Batch([path.name for path in some], partial(load, some), list(map(place, some))) for some in groups]


def _together(made: Sequence[Any]) -> Inputs:
    """Inputs of single pictures as one batch."""
    if isinstance(made[0], Tensor):
        return torch.cat([x if x.ndim == 4 else x[None] for x in made])
    return {name: _together([x[name] for x in made]) for name in made[0]}


def explain_many(  # noqa: PLR0913  (each is a choice of its own)
    model: object,
    loader: Iterable[Inputs | tuple[Inputs, Sequence[str]] | Batch],
    method: str = DEFAULT_METHOD,
    target: AnyTarget = None,
    *,
    output: str | Path,
    part_size: int = 1024,
    progress: bool = True,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    **options: Any,  # noqa: ANN401
) -> ExplainedDataSet:
    """Explain every batch of a loader and write the scores as a Parquet data set; run again to resume.

    Args:
        model: as for `explain`.
        loader: gives batches in the same order every time: inputs, pairs of inputs and their names, or `Batch`.
        method: a name of `vitrail.METHODS`, or `auto`.
        target: as for `explain`; None explains each predicted class.
        output: the folder of the data set.
        part_size: how many inputs a part file holds.
        progress: show a bar with inputs per second and the time left.
        engine: `local`, or `ray`: workers explain ranges of inputs, one a CPU or a GPU; the rows are the same. The
            loader is then a list of `Batch`, and what they load is read where a worker is.
        workers: of Ray, how many at most.
        address: of a Ray cluster that is running; without it one is started on this machine and ends with the run.
        **options: the method's own options and `preset`, as for `explain`.
    """
    if part_size < 1:
        raise OptionError(f"part_size={part_size}, but a part file holds at least one input.")
    elsewhere = _find_engine(engine, loader, workers, address)
    task = Task(model, loader, method, target, options)
    store = PartStore.open(as_path(output, "a data set"), _identity(task), part_size)
    with tqdm(total=_count(loader), unit="input", disable=not progress) as bar:
        if elsewhere is None:
            counts = _explain_here(task, store, bar)
        else:
            counts = _explain_elsewhere(elsewhere, task, store, bar)
    store.complete(counts[0])
    return ExplainedDataSet(store.folder, *counts)


@dataclass(frozen=True)
class Task:
    """The inputs to explain, and the method, target and options."""

    model: object
    loader: Iterable[Any]
    method: str
    target: AnyTarget
    options: Mapping[str, Any]


def _explain_here(task: Task, store: "PartStore", bar: tqdm) -> tuple[int, int]:
    """All inputs in this process: how many there are, and how many of them were explained now."""
    explainer, inputs, explained = Explainer(task.model, task.method, **task.options), 0, 0
    with _Writer(store) as writer:
        for start, names, given in _ahead(_batches(task.loader, store)):
            if given is not None:
                writer.take(explain_rows(explainer, given, task.target, start, names))
                explained += len(names)
            inputs += len(names)
            bar.update(len(names))
    return inputs, explained


def _explain_elsewhere(engine: "Engine", task: Task, store: "PartStore", bar: tqdm) -> tuple[int, int]:
    """The same by the workers of an engine, each of which writes whole parts."""
    batches = list(task.loader)
    inputs = sum(len(batch.names) for batch in batches)
    store.holds(0, inputs)  # raises if the data set was finished with fewer
    missing = [PartNumber(part) for part in range(-(-inputs // store.part_size)) if part not in store.done]
    explained = 0
    for count in engine(missing, PartWorker(replace(task, model=taken(task.model), loader=batches), store)):
        explained += count
        bar.update(count)
    return inputs, explained


@dataclass(frozen=True)
class PartNumber:
    """The inputs of one part file."""

    number: int

    def __str__(self) -> str:
        return f"part {self.number} of the data set"


@dataclass(eq=False)
class PartWorker:
    """Explains the inputs of one part file after the other, and writes the files; the model is made ready once."""

    task: Task
    store: "PartStore"

    @property
    def on_cuda(self) -> bool:
        """True if it needs a GPU."""
        return any(p.is_cuda for p in taken(self.task.model).parameters())

    @cached_property
    def explainer(self) -> Explainer:
        """The explainer of all batches."""
        return Explainer(self.task.model, self.task.method, **self.task.options)

    @cached_property
    def stops(self) -> list[int]:
        """The end of each batch."""
        return list(accumulate(len(batch.names) for batch in self.task.loader))

    def __call__(self, part: PartNumber) -> int:
        """Explain and write a part; return how many inputs it holds."""
        first, batches = part.number * self.store.part_size, list(self.task.loader)
        last = min(first + self.store.part_size, self.stops[-1])
        rows = []
        for number in range(bisect_right(self.stops, first), bisect_left(self.stops, last) + 1):
            batch = batches[number]
            start = self.stops[number] - len(batch.names)
            found = explain_rows(self.explainer, batch.load(), self.task.target, start, batch.names)
            rows += [row for row in found if first <= row["index"] < last]
        self.store.write(rows)
        return len(rows)


def _find_engine(name: str, loader: object, workers: int | None, address: str | None) -> "Engine | None":
    """The engine of this name, if it can take this loader; None stands for this process."""
    if name == "local" and workers is None and address is None:
        return None
    from vitrail.evaluate.bench.engines import Cluster, find_engine

    found = find_engine(name, Cluster(address, workers))
    if _listed(loader) is None:
        raise OptionError(
            f"engine={name!r} needs a list of vitrail.many.Batch, so that a worker loads its own inputs: "
            "vitrail.many.picture_batches gives one for a folder."
        )
    return found


def _listed(loader: object) -> Sequence[Batch] | None:
    """The loader, where it is a list of `Batch`, whose names are known before they are loaded; else None."""
    return loader if isinstance(loader, Sequence) and all(isinstance(one, Batch) for one in loader) else None


def _count(loader: object) -> int | None:
    """Return the number of inputs that a loader gives, if it is known before."""
    known = getattr(getattr(loader, "dataset", None), "__len__", None)
    batches = _listed(loader)
    listed = None if batches is None else sum(len(one.names) for one in batches)
    return listed if known is None else known()


def _in_full(value: object) -> str:
    """All that decides a target or an option: every number of a tensor, every field of a target."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(repr(value.tolist()).encode()).hexdigest()[:16]}"
    if is_dataclass(value):
        parts = ", ".join(f"{one.name}={_in_full(getattr(value, one.name))}" for one in fields(value))
        return f"{type(value).__name__}({parts})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_in_full, value))}]"
    return str(value)


def _identity(task: Task) -> dict[str, Any]:
    """Return the settings that decide the numbers of a run; where the names of inputs are known, they belong to it."""
    model, batches = taken(task.model), _listed(task.loader)
    names = "\n".join(str(name) for one in batches or () for name in (*one.names, *one.places))
    return {
        "method": task.method,
        "target": "predicted" if task.target is None else _in_full(task.target),
        "options": {name: _in_full(value) for name, value in sorted(task.options.items())},
        "model": type(model).__name__,
        "model_hash": fingerprint(model),
        "versions": dict(versions()),
        "names": None if batches is None else hashlib.sha256(names.encode()).hexdigest()[:16],
    }


def explain_rows(
    explainer: Explainer, inputs: Inputs, target: AnyTarget, start: int, names: Sequence[str]
) -> list[Row]:
    """Explain one batch on the device of the model; return one row for each sample."""
    device = next((p.device for p in taken(explainer.model).parameters()), torch.device("cpu"))
    return rows_of(explainer(_moved(inputs, device), target), start, names)


def _moved(inputs: Inputs, device: torch.device) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs.to(device, non_blocking=True)
    away = {n: x for n, x in inputs.items() if isinstance(x, Tensor) and x.device != device}
    moved = {name: x.to(device, non_blocking=True) for name, x in away.items()}
    return {**inputs, **moved} if moved else inputs


def rows_of(attribution: Attribution, start: int, names: Sequence[str]) -> list[Row]:
    """One row for each sample."""
    scores, pixels = attribution.scores.float().cpu().numpy(), attribution.pixels
    maps = None if pixels is None else pixels.float().cpu().flatten(1).numpy()
    classes = attribution.target.first
    valid = None if attribution.valid is None else attribution.valid.cpu().numpy()
    tokens = attribution.tokens
    if tokens is not None and valid is not None:
        pairs = [zip(words, mask, strict=True) for words, mask in zip(tokens, valid, strict=True)]
        tokens = [[word for word, real in pair if real] for pair in pairs]
    return [
        {
            "index": start + i,
            "name": str(name),
            "target": classes[i] if isinstance(classes, tuple) else classes,
            "scores": scores[i] if valid is None else scores[i][valid[i]],
            "rows": None if attribution.grid is None else attribution.grid[0],
            "tokens": None if tokens is None else list(tokens[i]),
            "pixels": None if maps is None else maps[i],
            "method": attribution.label,
        }
        for i, name in enumerate(names)
    ]


def _batches(loader: Iterable[Any], store: "PartStore") -> Iterator[tuple[int, Sequence[str], Inputs | None]]:
    """Yield the start of each batch, the names of its inputs, and the inputs; None where all its rows are written."""
    start = 0
    for given in loader:
        if isinstance(given, Batch):
            names = given.names
            found = None if store.holds(start, start + len(names)) else given.load()
        else:
            found, names = given if isinstance(given, tuple) else (given, None)
            count = read_inputs(found).batch
            names = [str(i) for i in range(start, start + count)] if names is None else names
            found = None if store.holds(start, start + count) else found
        if found is not None and read_inputs(found).batch != len(names):
            raise InputError(f"{len(names)} names were given for a batch of {read_inputs(found).batch} inputs.")
        yield start, names, found
        start += len(names)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, made by another thread before they are needed; its errors are raised here.

    A daemon thread, because a loader may block for ever, and Python waits for all others when it ends.
    """
    waiting: queue.Queue[tuple[bool, Any]] = queue.Queue()
    room = threading.Semaphore(AHEAD)  # released for each item that is taken, and at the end

    def load() -> None:
        try:
            for item in items:
                waiting.put((True, item))
                room.acquire()
                if stopped:
                    return
            waiting.put((False, None))
        except BaseException as error:
            waiting.put((False, error))

    stopped: list[bool] = []
    threading.Thread(target=load, daemon=True, name="vitrail loads").start()
    try:
        while (entry := waiting.get())[0]:
            room.release()
            yield entry[1]
        if entry[1] is not None:
            raise entry[1]
    finally:
        stopped.append(True)
        room.release()


@dataclass(frozen=True)
class PartStore:
    """The folder of a data set: its manifest and the part files that are whole."""

    folder: Path
    part_size: int
    done: frozenset[int]
    inputs: int | None  # of a run that came to its end

    @staticmethod
    def open(folder: Path, identity: Mapping[str, Any], part_size: int) -> "PartStore":
        """A new folder, or one that an earlier run of the same kind has left."""
        _pyarrow()
        folder.mkdir(parents=True, exist_ok=True)
        wanted, path = {**identity, "part_size": part_size}, folder / MANIFEST
        if path.exists():
            found = json.loads(path.read_text())
            differ = sorted(name for name in wanted if found.get(name) != wanted[name])
            if differ:
                said = "; ".join(f"{name}: {found.get(name)} there, {wanted[name]} now" for name in differ)
                raise OptionError(f"{folder} holds explanations of another run ({said}). Choose another output folder.")
        elif any(folder.iterdir()):
            raise OptionError(f"{folder} is not empty and holds no {MANIFEST}. Choose another output folder.")
        else:
            _write_whole(path, json.dumps({**wanted, "inputs": None}, indent=1).encode())
        for left in folder.glob(".part-*"):
            left.unlink()  # of a run that was killed
        inputs = json.loads(path.read_text())["inputs"]
        ranges = [tuple(map(int, part.stem.split("-")[1:])) for part in folder.glob("part-*.parquet")]
        whole = {start // part_size for start, stop in ranges if stop - start == part_size or stop == inputs}
        return PartStore(folder, part_size, frozenset(whole), inputs)

    def holds(self, start: int, stop: int) -> bool:
        """Return True if all rows of a range are in whole part files."""
        if self.inputs is not None and stop > self.inputs:
            raise OptionError(
                f"{self.folder} was finished with {self.inputs} inputs, but there are more now. Choose another output."
            )
        return all(part in self.done for part in range(start // self.part_size, (stop - 1) // self.part_size + 1))

    def write(self, rows: list[Row]) -> None:
        """One part file, renamed into place when it is whole."""
        pyarrow, parquet = _pyarrow()
        start = rows[0]["index"]
        name = f"part-{start:012d}-{start + len(rows):012d}.parquet"
        temporary = self.folder / f".{name}"
        schema = _schema(pyarrow)
        columns = [_column(pyarrow, [row[kind.name] for row in rows], kind.type) for kind in schema]
        parquet.write_table(pyarrow.Table.from_arrays(columns, schema=schema), temporary, compression="zstd")
        os.replace(temporary, self.folder / name)

    def complete(self, inputs: int) -> None:
        """Say in the manifest how many inputs there are."""
        path = self.folder / MANIFEST
        _write_whole(path, json.dumps({**json.loads(path.read_text()), "inputs": inputs}, indent=1).encode())


def _column(pyarrow: Any, values: list[Any], kind: Any) -> Any:  # noqa: ANN401
    """One column; arrays of numbers are taken as they are, not number by number."""
    if not isinstance(values[0], np.ndarray):
        return pyarrow.array(values, kind)
    ends = np.cumsum([0, *(len(x) for x in values)]).astype(np.int32)
    return pyarrow.ListArray.from_arrays(ends, pyarrow.array(np.concatenate(values), kind.value_type))


def _schema(pyarrow: Any) -> Any:  # noqa: ANN401
    numbers = pyarrow.list_(pyarrow.float32())
    return pyarrow.schema(
        [
            ("index", pyarrow.int64()), ("name", pyarrow.string()), ("target", pyarrow.int64()), ("scores", numbers),
            ("rows", pyarrow.int32()), ("tokens", pyarrow.list_(pyarrow.string())), ("pixels", numbers),
            ("method", pyarrow.string()),
        ]
    )  # fmt: skip


class _Writer:
    """Collects rows into parts, and writes them in another thread; after an error no other part is written."""

    def __init__(self, store: PartStore) -> None:
        self.store = store
        self.rows: list[Row] = []
        self.waiting: queue.Queue[list[Row] | None] = queue.Queue(maxsize=BEHIND)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, daemon=True, name="vitrail writes")

    def __enter__(self) -> "_Writer":
        self.thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._hand_over(self.rows)
        self.waiting.put(None)
        self.thread.join()
        if kind is None and self.error is not None:
            raise self.error

    def take(self, rows: list[Row]) -> None:
        """Rows of the next inputs; those of parts that are written already are dropped."""
        for row in rows:
            if row["index"] // self.store.part_size in self.store.done:
                continue
            self.rows.append(row)
            if (row["index"] + 1) % self.store.part_size == 0:
                self._hand_over(self.rows)
                self.rows = []

    def _hand_over(self, rows: list[Row]) -> None:
        if self.error is not None:
            raise self.error
        if rows:
            self.waiting.put(rows)

    def _work(self) -> None:
        while (rows := self.waiting.get()) is not None:
            try:
                if self.error is None:
                    self.store.write(rows)
            except BaseException as error:
                self.error = error


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("data sets are written with pyarrow: pip install 'vitrail[data]'") from error
    return pyarrow, parquet
