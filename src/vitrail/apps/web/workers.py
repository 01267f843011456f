"""Workers: one bounded queue and one thread for each kind of work, and jobs that can be stopped inside a pass.

An action is a generator. It yields events (dicts) for the page, and names of queues: what follows such a name runs on
that queue's thread. So decoding, quick and slow passes of one request wait in different queues, and a long job never
delays a quick one.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from traceback import extract_tb
from typing import Any

from vitrail.apps.web import BusyError
from vitrail.errors import VitrailError

LOAD, DECODE, QUICK, SLOW, DRAW = "load", "decode", "quick", "slow", "draw"
QUEUES = {
    LOAD: "opening a model",
    DECODE: "reading the picture",
    QUICK: "waiting for the model",
    SLOW: "waiting for the model",
    DRAW: "drawing the file",
}
"""Queues, and what a request that waits there says."""
LOOK_AGAIN = 0.2
"""Seconds after which a waiting job looks whether it is still wanted."""
Event = dict[str, Any]
Steps = Iterator[Event | str]


class Stopped(Exception):
    """The visitor no longer wants the answer. Not an error."""


@dataclass(eq=False)
class Job:
    """One request while it is under way.

    Args:
        owner: the session.
        deadline: when it has to be finished, by `time.monotonic`.
        progress: takes a fraction of the work and words; called from a worker's thread.
    """

    owner: str
    deadline: float = float("inf")
    progress: Callable[[float, str], None] = lambda fraction, words: None
    stop: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise if the visitor has left or the time is over."""
        if self.stop.is_set():
            raise Stopped
        if time.monotonic() > self.deadline:
            raise BusyError("this took longer than the server allows for one request. Choose a quicker method.")


class Workers:
    """The queues.

    Args:
        waiting: requests that the queues of slow work hold; one visitor may hold half of them.
        passing: requests that the other queues hold, through which every request passes.
    """

    def __init__(self, waiting: int, passing: int) -> None:
        self.most = {name: waiting if name in (SLOW, DRAW) else passing for name in QUEUES}
        self._pools = {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in QUEUES}
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def submit(self, queue: str, job: Job, function: Callable[[], Any]) -> "Future[Any]":
        """Run the function on the queue's thread, unless the queue is full."""
        own = f"{queue} {job.owner}"
        most = self.most[queue]
        with self._lock:
            if self._held[queue] >= most or self._held[own] >= max(1, most // 2):
                raise BusyError("the server is busy: too many requests wait for it. Try again in a few seconds.")
            self._held.update((queue, own))

        def checked() -> Any:  # noqa: ANN401
            job.check()
            return function()

        def release(future: object) -> None:
            with self._lock:
                self._held.subtract((queue, own))
                self._held += Counter()  # forget visitors that hold nothing

        future = self._pools[queue].submit(checked)
        future.add_done_callback(release)
        return future

    def held(self, queue: str) -> int:
        """Return the number of requests in a queue, the running one included."""
        return self._held[queue]

    def close(self) -> None:
        """Drop waiting requests; running ones end by themselves."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, job: Job, steps: Steps) -> AsyncGenerator[Event]:
        """The events of an action; when the reader stops, the computation is stopped at its next block."""
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def report(fraction: float, words: str) -> None:
            with suppress(RuntimeError):  # the server is ending
                loop.call_soon_threadsafe(events.put_nowait, {"progress": round(fraction, 3), "words": words})

        job.progress = report
        driver = asyncio.create_task(self._drive(job, steps, events))
        try:
            while (event := await events.get()) is not None:
                yield event
        finally:
            job.stop.set()
            driver.cancel()

    async def _drive(self, job: Job, steps: Steps, events: "asyncio.Queue[Event | None]") -> None:
        queue = QUICK
        try:
            while True:
                if self.held(queue):
                    events.put_nowait({"progress": 0.0, "words": QUEUES[queue]})
                found = await _finished(job, self.submit(queue, job, lambda: next(steps, None)))
                if found is None:
                    return
                if isinstance(found, str):
                    queue = found
                else:
                    events.put_nowait(found)
        except Stopped:
            events.put_nowait({"stopped": True})
        except BusyError as error:
            events.put_nowait({"error": str(error), "busy": True})
        except Exception as error:
            events.put_nowait({"error": said(error)})
        finally:
            events.put_nowait(None)


async def _finished(job: Job, future: "Future[Any]") -> Any:  # noqa: ANN401
    """The result; a job that is stopped or late while it waits in its queue does not wait any longer."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # read also when the client has left
    try:
        while not (await asyncio.wait({waiting}, timeout=LOOK_AGAIN))[0]:
            if (job.stop.is_set() or time.monotonic() > job.deadline) and future.cancel():
                job.check()
    finally:
        future.cancel()
    return waiting.result()


def said(error: Exception) -> str:
    """The message of a deliberate error; of any other its type and place, since it may quote a visitor's input."""
    if isinstance(error, VitrailError):
        return str(error)
    where = "".join(f" in {frame.name}, line {frame.lineno}" for frame in extract_tb(error.__traceback__)[-1:])
    return f"something failed inside the server ({type(error).__name__}{where}). Please report it."
