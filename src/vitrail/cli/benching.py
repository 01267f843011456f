"""The commands `bench run`, `table`, `plot` and `recommend`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vitrail import bench
from vitrail.bench.driver import Watch
from vitrail.cli import options
from vitrail.cli.opening import _silent
from vitrail.cli.reporting import note, out, reported
from vitrail.errors import OptionError
from vitrail.storage import save_figure, write_bytes

MANUAL = """Measure explanations: which one to trust on your model.

Every method runs on the same inputs; one recording of a batch serves all.
Each paper measured in its own way, so every table names its protocol, and
numbers of two protocols cannot be compared.

[bold]First steps[/]

  vitrail bench run --quick              two embedded models, three minutes
  vitrail bench recommend photo photos/  rank the methods on your pictures
  vitrail bench run -m photo -d imagenette=val.zip --protocol chefer
      --limit 500 -o results.db
  vitrail bench table results.db
  vitrail bench plot results.db -o curves.png

[bold]Data[/]

  -d pets=PATH                           a published set and where it lies
  -d "imagenet(fold=0)=PATH"             with an option of its reader
  -d photos/  -d reviews.txt             your own pictures, or a text a line
  --limit 200                            so many, at even distances

[bold]Protocols[/]

  chefer      mean threshold; 10 % steps, pixels, black; token-F1
  vtranm      5 % steps, area over 0..1; also AOPC and LOdds
  gradtoken   best of ten thresholds; token-F1 for k = 10, ..., 80
  attcat      text: AOPC, LOdds, Kendall as its code; Precision@20
  cui         whole patches, the class of the data set
  vitrail     ours: small, no labels needed

[bold]Breaking off and going on[/]

  Results go into one SQLite file, batch by batch. Kill a run whenever you
  like; the same command goes on where it was and computes nothing twice.
  Another model, option or version makes new rows, never mixed with the old.
"""

RUN = """Run models on data sets by methods and protocols, and keep the results.

Without --method: all that need one forward and one backward pass.
[bold]--method all[/] adds those that run the model again; --subset N gives them
N examples only.

[bold]Examples[/]

  vitrail bench run --quick
  vitrail bench run -m sentiment -d sst2=SST-2 --protocol attcat --limit 200
  vitrail bench run -m vit.safetensors --arch vit_tiny_patch16_224
      -d pets=oxford-pets --protocol chefer --protocol gradtoken
      --method all --subset 50 --device cuda --dtype bfloat16
  vitrail bench run -m photo -d imagenette=val.zip --ablation vtranm
      --protocol vtranm
  vitrail bench run --plan plan.yaml -o results.db
"""

WHAT, HOW, KEEP = "What to measure", "How to run", "Result"
QUICK_METHODS = ("rollout", "grad_cam", "gae", "complete_gradient", "tokentm", "gradtoken", "att_grads", "attcat")
QUICK_PICTURES = 12
RESULTS = Path("results.db")

Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="As for explain. May be repeated.", show_default=False, rich_help_panel=WHAT),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        "-d",
        metavar="NAME=PATH",
        help="A data set, or a folder of pictures, or a .txt file. May be repeated.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help='A name, "name(option=value)", or all. May be repeated.',
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Protocols = Annotated[
    list[str] | None,
    typer.Option(
        "--protocol",
        help=f"{', '.join(bench.PROTOCOLS)}. May be repeated. Default: vitrail.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        help=f"In place of the protocol's: {', '.join(bench.MEASURES)}.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Ablation = Annotated[
    str | None, typer.Option(help="Add the variants of vtranm (Table 4) or gradtoken.", rich_help_panel=WHAT)
]
Class = Annotated[
    str | None,
    typer.Option("--target", help="Explain the predicted class, or the label of the data set.", rich_help_panel=WHAT),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", help="A YAML file in place of all these.", show_default=False, rich_help_panel=WHAT),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="The embedded models on inputs in the package.", rich_help_panel=WHAT)
]
Limit = Annotated[
    int | None, typer.Option(help="At most so many examples of every data set.", min=1, rich_help_panel=WHAT)
]
Subset = Annotated[
    int | None,
    typer.Option(help="So many examples for methods that run the model again.", min=1, rich_help_panel=WHAT),
]
Size = Annotated[int, typer.Option("--batch", help="Examples recorded together.", min=1, rich_help_panel=HOW)]
Forward = Annotated[
    int, typer.Option("--forward-batch", help="Perturbed inputs run together.", min=1, rich_help_panel=HOW)
]
Precision = Annotated[
    str, typer.Option(help="Of the perturbed passes: float32, bfloat16, float16.", rich_help_panel=HOW)
]
Seed = Annotated[int, typer.Option(help="Of noise, sampling and bootstrap.", rich_help_panel=HOW)]
EngineName = Annotated[str, typer.Option("--engine", help="local, or ray for a cluster.", rich_help_panel=HOW)]
Results = Annotated[
    Path, typer.Option("--output", "-o", help="The results file; gone on with if it is there.", rich_help_panel=KEEP)
]
ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="What bench run wrote.")]

app = typer.Typer(
    help=MANUAL,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("run", help=RUN)
@reported
def _run(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: Models = None,
    arch: options.Arch = None,
    data: Data = None,
    method: Methods = None,
    protocol: Protocols = None,
    metric: Metrics = None,
    ablation: Ablation = None,
    target: Class = None,
    preset: options.Preset = "recommended",
    limit: Limit = None,
    subset: Subset = None,
    plan: PlanFile = None,
    quick: Quick = False,  # noqa: FBT002
    batch: Size = 16,
    forward_batch: Forward = 64,
    device: options.Device = "cpu",
    dtype: Precision = "float32",
    seed: Seed = 0,
    engine: EngineName = "local",
    output: Results = RESULTS,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    worker = bench.find_engine(engine)
    if quick or plan is not None:
        if model or data or method or protocol or metric or ablation or (quick and plan is not None):
            raise OptionError(f"{'--quick' if quick else '--plan'} says all there is to run: leave out the others.")
        made = quick_plan(device) if quick else bench.read_plan(plan or "")
    else:
        chosen = method if method is not None else ([] if ablation else ["usual"])
        made = bench.Plan(
            models=_models(model or [], arch),
            data=tuple(bench.parse_data(text) for text in data or []),
            trials=bench.parse_trials(chosen, preset, subset),
            protocols=bench.protocols_of(tuple(protocol or ["vitrail"])),
            preset=preset,
            ablation=ablation,
            metrics=tuple(metric) if metric else None,
            target=target,
            limit=limit,
            batch=batch,
            forward_batch=forward_batch,
            device=device,
            dtype=dtype,
            seed=seed,
        )
    with _silent(), _bar() as watch:
        found = bench.run(made, output, engine=worker, watch=watch)
    old = found.done - found.fresh
    note(f"{found.done} examples, {found.fresh} computed now" + (f", {old} were there already" if old else ""))
    if found.skipped:
        note(f"{found.skipped} results were skipped; the table says why")
    if quick:
        typer.echo(bench.render(bench.tables(output, seed=seed)), nl=False)
    note(f"wrote {output}; now: vitrail bench table {output}, vitrail bench plot {output} -o curves.png")


def quick_plan(device: str = "cpu") -> bench.Plan:
    """The embedded models on inputs that come with the package, in under three minutes on two cores."""
    return bench.Plan(
        models=(bench.ModelSpec("photo"), bench.ModelSpec("sentiment")),
        data=(bench.DataSpec("demo_pictures", limit=QUICK_PICTURES), bench.DataSpec("demo_sentences")),
        trials=tuple(bench.Trial(name) for name in QUICK_METHODS),
        protocols=bench.protocols_of(("vitrail",)),
        device=device,
    )


def _models(names: list[str], arch: str | None) -> tuple[bench.ModelSpec, ...]:
    return tuple(bench.ModelSpec(name, arch if name.endswith(".safetensors") else None) for name in names)


@app.command("table")
@reported
def _table(
    results: ResultsArgument = RESULTS,
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
    results: ResultsArgument = RESULTS,
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
    method: Methods = None,
    limit: Annotated[int, typer.Option(help="So many of the inputs, at even distances.", min=2)] = 32,
    device: options.Device = "cpu",
    batch: Size = 16,
    seed: Seed = 0,
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
    with _silent(), _bar() as watch:
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
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
