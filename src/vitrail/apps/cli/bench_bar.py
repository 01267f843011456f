"""A progress bar for runs of the bench."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from vitrail.evaluate import bench
from vitrail.evaluate.bench.driver import Watch


class _Throughput(ProgressColumn):
    """Examples a second, of those that were really computed."""

    def render(self, task: Task) -> Text:
        """The speed so far."""
        fresh, elapsed = task.fields.get("fresh", 0), task.elapsed or 0.0
        return Text(f"{fresh / elapsed:.2g} examples/s" if fresh and elapsed else "", style="progress.data.speed")


@contextmanager
def bar() -> Iterator[Watch]:
    """A bar on the terminal with throughput and time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Throughput(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as shown:
        task = shown.add_task("loading", total=None)

        def watch(progress: bench.Progress) -> None:
            shown.update(
                task,
                total=progress.total,
                completed=progress.done,
                description=progress.what or "reading results",
                fresh=progress.fresh,
            )

        yield watch
