"""The commands `bench recommend`, `sanity` and `agreement`: methods on a user's own model and inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from vitrail.apps.cli import bench_words as words
from vitrail.apps.cli import options
from vitrail.apps.cli.bench_bar import bar
from vitrail.apps.cli.opening import silent
from vitrail.apps.cli.reporting import note, out, reported
from vitrail.evaluate import bench
from vitrail.evaluate.bench.driver import Watch

Inputs = Annotated[str, typer.Argument(help="A folder of pictures, a .txt file, or NAME=PATH.", show_default=False)]
Some = Annotated[int, typer.Option("--limit", help="So many of the inputs, at even distances.", min=2)]
Kept = Annotated[Path | None, typer.Option("--output", "-o", help="Keep the results in this file.")]


def specs_of(names: list[str], arch: str | None) -> tuple[bench.ModelSpec, ...]:
    """Models as the bench opens them; an architecture belongs to a `.safetensors` file."""
    return tuple(bench.ModelSpec(name, arch if name.endswith(".safetensors") else None) for name in names)


def tell_left_out(plan: bench.Plan) -> None:
    """One line about methods that `all` does not stand for here."""
    unused = bench.left_out(plan)
    if unused:
        note(f"left out, since they do not explain such data, models or presets: {', '.join(unused)}")


def tell_older(found: bench.Progress, path: Path) -> None:
    """One line about results of the same names that this run did not go on with."""
    if found.older:
        parts = ", ".join(found.changed)
        note(
            f"{path} also holds {found.older} older runs of the same names, which differ in {parts}: "
            "they are kept in tables of their own, and none of their numbers was used"
        )


def _command(protocol: str, limit: int, run: Callable[[bench.Plan, Path | None], None]) -> Callable[..., None]:
    """A command that runs methods under a protocol on one model and data set."""

    @reported
    def command(  # noqa: PLR0913  (one parameter for each option of the command line)
        model: options.ModelArgument,
        data: Inputs,
        arch: options.Arch = None,
        method: words.Methods = None,
        limit: Some = limit,
        device: options.Device = "cpu",
        batch: words.Size = 16,
        seed: words.Seed = 0,
        output: Kept = None,
        debug: options.Debug = False,  # noqa: FBT002
    ) -> None:
        plan = bench.Plan(
            models=specs_of([model], arch),
            data=(bench.parse_data(data),),
            trials=bench.parse_trials(method or ["usual"]),
            protocols=bench.protocols_of((protocol,)),
            limit=limit,
            batch=batch,
            device=device,
            seed=seed,
        )
        tell_left_out(plan)
        run(plan, output)

    return command


@contextmanager
def _watched(output: Path | None) -> Iterator[Watch]:
    """A progress bar, and at the end a line about older results where a file is kept."""
    latest: list[bench.Progress] = []
    with silent(), bar() as watch:

        def both(progress: bench.Progress) -> None:
            latest[:] = [progress]
            watch(progress)

        yield both
    if output is not None and latest:
        tell_older(latest[0], output)


def _rank(plan: bench.Plan, output: Path | None) -> None:
    with _watched(output) as watch:
        found = bench.recommend(plan, output, watch=watch)
    show_ranking(found)


def _print(plan: bench.Plan, output: Path | None) -> None:
    with _watched(output) as watch:
        found = bench.measure(plan, output, watch=watch)
    typer.echo(bench.render(found), nl=False)


def show_ranking(found: bench.Recommendation) -> None:
    """Print the methods from best to worst."""
    table = Table("", "method", f"{found.measure} ↑", "95 % interval", "inputs", "")
    for place, rank in enumerate(found.ranks, 1):
        e = rank.estimate
        verdict = "best" if e.best else ("not told from the best" if rank.as_good else "")
        table.add_row(
            f"{place}.", Text(rank.method), f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}", str(e.count), verdict
        )
    out().print(table)
    for line in found.table.notes:
        out().print(Text(line), style="dim")


COMMANDS: dict[str, tuple[str, Callable[..., None]]] = {
    "recommend": (words.RECOMMEND, _command("vitrail", 32, _rank)),
    "sanity": (words.SANITY, _command("sanity", 16, _print)),
    "agreement": (words.AGREEMENT, _command("agreement", 32, _print)),
}
"""Name -> help and command."""
