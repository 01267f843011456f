"""The commands `bench run`, `table`, `plot` and `recommend`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vitrail import bench
from vitrail.bench.driver import Watch
from vitrail.cli import bench_words as words
from vitrail.cli import options
from vitrail.cli.opening import silent
from vitrail.cli.reporting import note, out, reported
from vitrail.errors import OptionError
from vitrail.storage import save_figure, write_bytes

QUICK_METHODS = ("rollout", "grad_cam", "gae", "complete_gradient", "tokentm", "gradtoken", "att_grads", "attcat")
QUICK_PICTURES = 12

app = typer.Typer(
    help=words.MANUAL,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("run", help=words.RUN)
@reported
def _run(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: words.Models = None,
    arch: options.Arch = None,
    data: words.Data = None,
    method: words.Methods = None,
    protocol: words.Protocols = None,
    metric: words.Metrics = None,
    ablation: words.Ablation = None,
    target: words.Class = None,
    preset: options.Preset = "recommended",
    limit: words.Limit = None,
    subset: words.Subset = None,
    plan: words.PlanFile = None,
    quick: words.Quick = False,  # noqa: FBT002
    batch: words.Size = 16,
    forward_batch: words.Forward = 64,
    device: options.Device = "cpu",
    dtype: words.Precision = "float32",
    seed: words.Seed = 0,
    engine: words.EngineName = "local",
    ray_address: words.RayAddress = None,
    ray_workers: words.RayWorkers = None,
    ray_gpu_share: words.RayShare = 1.0,
    output: words.Results = words.RESULTS,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    worker = bench.find_engine(engine, bench.Cluster(ray_address, ray_workers, ray_gpu_share))
    settings: dict[str, Any] = {
        "preset": preset,
        "target": target,
        "limit": limit,
        "batch": batch,
        "forward_batch": forward_batch,
        "device": device,
        "dtype": dtype,
        "seed": seed,
    }
    if quick or plan is not None:
        if model or arch or data or method or protocol or metric or ablation or subset or (quick and plan):
            raise OptionError(f"{'--quick' if quick else '--plan'} says what to measure: leave out the others.")
        made = changed(quick_plan() if quick else bench.read_plan(plan or ""), settings)
    else:
        chosen = method if method is not None else ([] if ablation else ["usual"])
        specs = tuple(bench.parse_data(text) for text in data or [])
        made = bench.Plan(
            models=_models(model or [], arch),
            data=specs,
            trials=bench.parse_trials(chosen, preset, subset, data=specs),
            protocols=bench.protocols_of(tuple(protocol or ["vitrail"])),
            ablation=ablation,
            metrics=tuple(metric) if metric else None,
            **settings,
        )
    with silent(), _bar() as watch:
        found = bench.run(made, output, engine=worker, watch=watch)
    old = found.done - found.fresh
    note(f"{found.done} examples, {found.fresh} computed now" + (f", {old} were there already" if old else ""))
    if found.skipped:
        note(f"{found.skipped} results were skipped; the table says why")
    if quick:
        typer.echo(bench.render(bench.tables(output, seed=seed)), nl=False)
    note(f"wrote {output}; now: vitrail bench table {output}, vitrail bench plot {output} -o curves.png")


def changed(plan: bench.Plan, settings: dict[str, Any]) -> bench.Plan:
    """The plan with those settings that a user gave, that is, that are not the defaults."""
    usual = {field.name: field.default for field in fields(bench.Plan)}
    return replace(plan, **{name: value for name, value in settings.items() if value != usual[name]})


def quick_plan() -> bench.Plan:
    """The embedded models on inputs that come with the package, in under three minutes on two cores."""
    return bench.Plan(
        models=(bench.ModelSpec("photo"), bench.ModelSpec("sentiment")),
        data=(bench.DataSpec("demo_pictures", limit=QUICK_PICTURES), bench.DataSpec("demo_sentences")),
        trials=tuple(bench.Trial(name) for name in QUICK_METHODS),
        protocols=bench.protocols_of(("vitrail",)),
    )


def _models(names: list[str], arch: str | None) -> tuple[bench.ModelSpec, ...]:
    return tuple(bench.ModelSpec(name, arch if name.endswith(".safetensors") else None) for name in names)


@app.command("table")
@reported
def _table(
    results: words.ResultsArgument = words.RESULTS,
    form: Annotated[str, typer.Option("--format", "-f", help="markdown, latex or csv.")] = "markdown",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: the terminal.")] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Print the tables: best in bold, 95 % intervals, and what cannot be told from the best.

    The same results give the same bytes, whether or not the run was broken off on the way.
    """
    text = bench.render(bench.tables(results, seed=seed), form)
    if output is None:
        typer.echo(text, nl=False)
        return
    note(f"wrote {write_bytes(output, text.encode())}")


@app.command("plot")
@reported
def _plot(
    results: words.ResultsArgument = words.RESULTS,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png or .pdf file.")] = Path("curves.png"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Draw what becomes of accuracy and probability while pixels or tokens are removed."""
    note(f"wrote {save_figure(bench.curves(results), output)}")


@app.command("recommend")
@reported
def _recommend(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: options.ModelArgument,
    data: Annotated[str, typer.Argument(help="A folder of pictures, a .txt file, or NAME=PATH.", show_default=False)],
    arch: options.Arch = None,
    method: words.Methods = None,
    limit: Annotated[int, typer.Option(help="So many of the inputs, at even distances.", min=2)] = 32,
    device: options.Device = "cpu",
    batch: words.Size = 16,
    seed: words.Seed = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Keep the results in this file.")] = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Rank the methods on your own model and some of your inputs by how faithful they are.

    Pictures: pixels are removed, highest-scored first and lowest-scored first; the further the two curves of the
    predicted class lie apart, the better (ABPC). Texts: the drop of its probability when the highest-scored tokens are
    deleted (AOPC). No labels are needed.
    """
    plan = bench.Plan(
        models=_models([model], arch),
        data=(bench.parse_data(data),),
        trials=bench.parse_trials(method or ["usual"], "recommended"),
        protocols=bench.protocols_of(("vitrail",)),
        limit=limit,
        batch=batch,
        device=device,
        seed=seed,
    )
    with silent(), _bar() as watch:
        found = bench.recommend(plan, output, watch=watch)
    show_ranking(found)


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


class _Throughput(ProgressColumn):
    """Examples a second, of those that were really computed."""

    def render(self, task: Task) -> Text:
        """The speed so far."""
        fresh, elapsed = task.fields.get("fresh", 0), task.elapsed or 0.0
        return Text(f"{fresh / elapsed:.2g} examples/s" if fresh and elapsed else "", style="progress.data.speed")


@contextmanager
def _bar() -> Iterator[Watch]:
    """A bar on the terminal with throughput and time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Throughput(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("loading", total=None)

        def watch(progress: bench.Progress) -> None:
            bar.update(
                task,
                total=progress.total,
                completed=progress.done,
                description=progress.what or "reading results",
                fresh=progress.fresh,
            )

        yield watch
