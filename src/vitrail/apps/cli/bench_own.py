"""The commands `bench recommend`, `sanity` and `agreement`, for a user's own model and inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.bench import Methods, Seed, Size, bar, check_seed, note_left_out, note_older, specs_of
from vitrail.apps.cli.screen import note, reported, show_table

if TYPE_CHECKING:
    from vitrail.evaluate import bench
    from vitrail.evaluate.bench.driver import Watch

RECOMMEND = """Rank the methods on your own model and inputs by how faithful they are.

Pictures: pixels are removed, highest-scored first and lowest-scored first;
the further the two curves of the predicted class lie apart, the better
(ABPC). Texts: the drop of its probability when the highest-scored tokens are
deleted (AOPC). No labels are needed. Without --method: the default, and all
that need one forward and one backward pass.
"""

SANITY = """Test whether the maps depend on what the model has learned, and on the class.

The weights are randomised part by part from the output down, and the maps
compared with those of the trained model by the size of their rank
correlation: a map that stays the same explains something else. Class
sensitivity is the rank correlation of the maps of the predicted class and of
the likeliest other one: near 1, the class plays no part. Without --method:
the default, and all that need one forward and one backward pass.
"""

AGREEMENT = """Show how far the methods agree: rank correlations of their maps, mean over the inputs."""

Inputs = Annotated[
    str, typer.Argument(metavar="DATA", help="A folder of pictures, a .txt file, or NAME=PATH.", show_default=False)
]
Some = Annotated[int, typer.Option("--limit", help="Use only this many inputs, evenly spaced.", min=2)]
Kept = Annotated[Path | None, typer.Option("--output", "-o", help="Keep the results in this file.")]


FEW = 10
"""With fewer inputs than this a bootstrap says little."""


def _command(protocol: str, limit: int, show: "Callable[[bench.Plan, Path | None], None]") -> Callable[..., None]:
    """A command that runs methods under a protocol on one model and data set."""

    @reported
    def command(  # noqa: PLR0913  (one parameter for each option of the command line)
        model: options.ModelArgument,
        data: Inputs,
        arch: options.Arch = None,
        method: Methods = None,
        limit: Some = limit,
        device: options.Device = "cpu",
        batch: Size = 16,
        seed: Seed = 0,
        output: Kept = None,
        debug: options.Debug = False,  # noqa: FBT002
    ) -> None:
        check_seed(seed)

        from vitrail.evaluate import bench

        plan = bench.Plan(
            models=specs_of([model], arch),
            data=(bench.parse_data(data),),
            trials=bench.parse_trials(method or ["default", "usual"]),
            protocols=bench.protocols_of((protocol,)),
            limit=limit,
            batch=batch,
            device=device,
            seed=seed,
        )
        show(plan, output)
        note_left_out(plan)

    return command


@contextmanager
def _watched(output: Path | None) -> "Iterator[Watch]":
    """A progress bar, and at the end a line about older results where a file is kept."""
    from vitrail.apps.cli.session import silent

    latest: list[bench.Progress] = []
    with silent(), bar() as watch:

        def both(progress: "bench.Progress") -> None:
            latest[:] = [progress]
            watch(progress)

        yield both
    if output is not None and latest:
        note_older(latest[0], output)


def _rank(plan: "bench.Plan", output: Path | None) -> None:
    from vitrail.evaluate import bench

    with _watched(output) as watch:
        found = bench.recommend(plan, output, watch=watch)
    show_ranking(found)


def _print(plan: "bench.Plan", output: Path | None) -> None:
    from vitrail.evaluate import bench

    with _watched(output) as watch:
        found = bench.measure(plan, output, watch=watch)
    typer.echo(bench.render(found), nl=False)


def show_ranking(found: "bench.Recommendation") -> None:
    """Print the methods from best to worst."""
    rows = []
    for place, rank in enumerate(found.ranks, 1):
        e = rank.estimate
        verdict = "best" if e.best else ("not significantly different from the best" if rank.as_good else "")
        rows.append((place, rank.method, f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}", e.count, verdict))
    show_table(("rank", "method", f"{found.measure} ↑", "95 % interval", "inputs", "verdict"), rows)
    for line in found.table.notes:
        note(line)
    if (most := max(rank.estimate.count for rank in found.ranks)) < FEW:
        note(f"note: {most} inputs are too few to rank methods by; give at least {FEW}.")


recommend = _command("vitrail", 32, _rank)
sanity = _command("sanity", 16, _print)
agreement = _command("agreement", 32, _print)
