"""Models that visitors may open, and passes that report to the job that runs them.

Visitors may open the embedded models, those that were allowed, or any; a few stay loaded. A job is stopped inside a
pass when its visitor has left.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from vitrail.api.explainer import Explainer
from vitrail.apps.web.workers import Job
from vitrail.errors import ModelError
from vitrail.models.loading import EMBEDDED, Loaded, load, silent

KEPT = 3
"""Models that stay loaded beside the embedded ones."""
READS = {"image": "pictures", "text": "text"}


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model that one job at a time uses.

    Args:
        passes: how often the model ran for each method and preset when that was last computed.
    """

    loaded: Loaded
    lock: threading.RLock = field(default_factory=threading.RLock)
    passes: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def asks(self) -> bool:
        """Return True if the model answers questions about pictures."""
        return self.loaded.source == "question"

    @property
    def kind(self) -> str:
        """The kind of input it is opened for: `image` or `text`."""
        return "image" if self.asks else self.loaded.kind

    @cached_property
    def explainer(self) -> Explainer:
        """Return the explainer of its inputs, for methods that make passes of their own."""
        return Explainer(self.loaded.model)

    @cached_property
    def twin(self) -> "OpenModel":
        """The same weights in modules of their own, for slow jobs, so that no quick job waits for them."""
        model = self.loaded.model
        shared = {id(weight): weight for weight in (*model.parameters(), *model.buffers())}
        return OpenModel(replace(self.loaded, model=deepcopy(model, shared)))


class ModelCache:
    """Models by name, loaded when first asked for.

    One model is loaded at a time, since the libraries that load them change settings of the whole process meanwhile.
    """

    def __init__(self, allowed: Sequence[str] = (), *, any_model: bool = False, pickles: bool = False) -> None:
        self.allowed, self.any_model, self.pickles = tuple(allowed), any_model, pickles
        self._open: OrderedDict[str, OpenModel] = OrderedDict()
        self._table = threading.Lock()
        self._loading = threading.Lock()

    def names(self, kind: str) -> list[str]:
        """The models offered for pictures or text; what an allowed one reads is known only once it is open."""
        own = [name for name, task in EMBEDDED.items() if (task == "image") == (kind == "image")]
        with self._table:
            known = {name: opened.kind for name, opened in self._open.items()}
        return [*own, *(name for name in self.allowed if known.get(name, kind) == kind)]

    def is_open(self, name: str) -> bool:
        """Return True if a model can be used at once."""
        with self._table:
            return name in self._open

    def open(self, name: str, kind: str) -> OpenModel:
        """The model of this name, if the server may open it and it reads this kind of input."""
        if name not in (*EMBEDDED, *self.allowed) and not self.any_model:
            how = f"start the server with: vitrail app --allow {name}"
            raise ModelError(f"this server may not open {name!r}. To allow it, {how}")
        opened = self._find(name) or self._loaded(name)
        if opened.kind != kind:
            raise ModelError(f"{name} reads {READS[opened.kind]}, not {READS[kind]}. Choose another model.")
        return opened

    def _find(self, name: str) -> OpenModel | None:
        """The model if it is loaded; it then counts as used last."""
        with self._table:
            if name in self._open:
                self._open.move_to_end(name)
            return self._open.get(name)

    def _loaded(self, name: str) -> OpenModel:
        """The model, loaded now; a second request for it waits until it is loaded."""
        with self._loading:
            opened = self._find(name) or self._load(name)
            with self._table:
                self._open[name] = opened
                self._open.move_to_end(name)
                for other in [one for one in self._open if one not in EMBEDDED][:-KEPT]:
                    del self._open[other]
        return opened

    def _load(self, name: str) -> OpenModel:
        with silent():
            loaded = load(name, pickles=self.pickles)
        unseen = {"question": "answers questions", "writing": "writes text", "boxes": "finds objects"}
        if loaded.task in unseen and loaded.source != "question":
            raise ModelError(f"{name} {unseen[loaded.task]}, which this page does not show: use vitrail explain.")
        loaded.model.requires_grad_(requires_grad=False)
        return OpenModel(loaded)


SLOWING = 0.97
"""Where the number of passes is not known, each pass moves the bar by less."""
PAUSE = 0.2
"""Seconds between two reports from inside a pass."""


@dataclass(eq=False)
class Watch:
    """Called whenever the model, or a block of it, runs: stop here if asked to, else report which pass this is.

    Args:
        total: how many passes there will be, if that is known.
    """

    job: Job
    words: str
    total: int | None = None
    blocks: int = 0
    passes: int = 0
    inside: int = 0
    reported: float = 0.0

    def begin(self) -> None:
        """Before each pass."""
        self.job.check()
        self.passes, self.inside = self.passes + 1, 0
        self._report()

    def step(self) -> None:
        """Before each block: a pass over many inputs takes long."""
        self.job.check()
        self.inside += 1
        if time.monotonic() - self.reported > PAUSE:
            self._report()

    def _report(self) -> None:
        self.reported = time.monotonic()
        within = min(self.inside / self.blocks, 1.0) if self.blocks else 0.0
        done = max(self.passes - 1, 0) + within
        share = 1 - SLOWING ** (done + 1) if self.total is None else min(done / self.total, 1.0)
        known = "" if self.total is None else f" of {self.total}"
        self.job.progress(share, f"{self.words}, pass {self.passes}{known}" if self.passes > 1 else self.words)


@contextmanager
def running(opened: OpenModel, job: Job, words: str, total: int | None = None) -> Iterator[Watch]:
    """Use the model alone, with every pass reported, until the block ends or the job is stopped."""
    lists = [part for part in opened.loaded.model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    blocks = list(max(lists, key=len, default=()))  # the longest list, whose modules run one after the other
    watch = Watch(job, words, total, len(blocks))
    with opened.lock:
        job.check()
        # The hooks stay: a model that changes between two jobs would need a new shadow. A copy has them already.
        if _begin not in opened.loaded.model._forward_pre_hooks.values():
            opened.loaded.model.register_forward_pre_hook(_begin)
            for block in blocks:
                block.register_forward_pre_hook(_step)
        token = _current.set(watch)
        try:
            yield watch
        finally:
            _current.reset(token)


_current: ContextVar[Watch | None] = ContextVar("watch", default=None)


def _begin(module: nn.Module, args: object) -> None:
    if (watch := _current.get()) is not None:
        watch.begin()


def _step(module: nn.Module, args: object) -> None:
    if (watch := _current.get()) is not None:
        watch.step()
