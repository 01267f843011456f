"""The commands below `vitrail bench`, and their options."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.apps.cli import INTERRUPTED, options
from vitrail.apps.cli.options import check_file, check_not_replaced
from vitrail.apps.cli.screen import note, reported, show_table
from vitrail.errors import OptionError
from vitrail.evaluate import MEASURE_PLACES

if TYPE_CHECKING:
    from vitrail.evaluate import bench
    from vitrail.evaluate.bench.driver import Watch

MANUAL = """Measure explanations: which one to trust on your model.

Every method runs on the same inputs; one recording of a batch serves all.
Each paper measured in its own way, so every table names its protocol, and
numbers of two protocols cannot be compared.

[bold]First steps[/]

  vitrail bench run --quick              two embedded models, about a minute
  vitrail bench recommend photo photos/  rank the methods on your pictures
  vitrail bench sanity photo photos/     do maps depend on weights and class?
  vitrail bench agreement photo photos/  which methods show the same?
  vitrail bench run -m photo -d imagenette=val.zip --protocol chefer
      --limit 500 -o results.db
  vitrail bench table results.db
  vitrail bench plot results.db -o curves.png

[bold]Data[/]

  -d pets=PATH                           a published set and where it lies
  -d "imagenet(fold=0)=PATH"             with an option of its reader
  -d photos/  -d reviews.txt             your own pictures, or a text a line
  -d "needle(sentences=30)"              contexts for a language model; also
                                         variables, people, lookup
  -d contexts.jsonl                      your own contexts and questions
  --limit 200                            only this many, evenly spaced

[bold]Protocols[/]

  chefer      mean threshold; 10 % steps, pixels, black; token-F1
  vtranm      5 % steps, area over 0..1; also AOPC and LOdds
  gradtoken   best of ten thresholds; VOC's classes; token-F1, k = 10, ..., 80
  attcat      text: AOPC, LOdds, Kendall as its code; Precision@20
  cui         a guide beside each picture, whole patches, the label
  vitrail     ours: small, no labels needed
  sanity      weights randomised from the output down; another class
  agreement   rank correlation between methods
  answers     language models: which sentences an answer came from

[bold]Stopping and continuing[/]

  Results go into one SQLite file, batch by batch. Kill a run whenever you
  like; the same command continues it and computes nothing twice.
  Another model, option or version makes new rows, never mixed with the old.
"""

RUN = """Run models on data sets by methods and protocols, and keep the results.

Without --method: all that need one forward and one backward pass.
[bold]--method all[/] adds those that run the model again; --subset N gives them
N examples only. One line says which do not apply to the data and are left out.

[bold]Examples[/]

  vitrail bench run --quick
  vitrail bench run -m sentiment -d sst2=SST-2 --protocol attcat --limit 200
  vitrail bench run -m vit.safetensors --arch vit_tiny_patch16_224
      -d pets=oxford-pets --protocol chefer --protocol gradtoken
      --method all --subset 50 --device cuda --dtype bfloat16
  vitrail bench run -m photo -d imagenette=val.zip --ablation vtranm
      --protocol vtranm
  vitrail bench run -m ./lm -d needle -d people --protocol answers
      --method gae --method ifr --method context_cite --limit 100
  vitrail bench run --plan plan.yaml -o results.db
"""

TABLE = """Print the tables: best in bold, 95 % intervals, and what is not significantly different from the best.

The same results give the same bytes, whether or not the run was broken
off on the way.
"""

PLOT = "Draw what becomes of accuracy and probability while pixels or tokens are removed."

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

PROTOCOLS = ("chefer", "vtranm", "gradtoken", "attcat", "cui", "vitrail", "sanity", "agreement", "answers")
"""Names of protocols, for help and completion; a test compares them with the bench."""
SEEDS = (-(2**63), 2**63 - 1)
QUICK_METHODS = ("rollout", "grad_cam", "gae", "complete_gradient", "tokentm", "gradtoken", "att_grads", "attcat")
QUICK_PICTURES = 12

RESULTS = Path("results.db")

what_option = partial(typer.Option, rich_help_panel="What to measure")
run_option = options.run_option

Methods = Annotated[
    list[str] | None,
    what_option(help='A name, "name(option=value)", or all. May be repeated.', autocompletion=options.METHOD_NAMES),
]
Size = Annotated[int, run_option("--batch", help="Examples recorded together.", min=1)]
Seed = Annotated[int, run_option(help="Seed of noise, sampling and bootstrap.")]
ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="What bench run wrote.")]


@reported
def run(  # noqa: PLR0913  (one parameter for each option of the command line)
    model: Annotated[
        list[str] | None,
        what_option("--model", "-m", help="As for explain. May be repeated.", autocompletion=options.MODEL_NAMES),
    ] = None,
    arch: options.Arch = None,
    data: Annotated[
        list[str] | None,
        what_option(
            "--data",
            "-d",
            metavar="NAME=PATH",
            help="A data set, or a folder of pictures, or a .txt file. May be repeated.",
        ),
    ] = None,
    method: Methods = None,
    protocol: Annotated[
        list[str] | None,
        what_option(
            help=f"{', '.join(PROTOCOLS)}. May be repeated. Default: vitrail.",
            autocompletion=options.completes(PROTOCOLS),
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, what_option(help=f"In place of the protocol's: {', '.join(MEASURE_PLACES)}.")
    ] = None,
    ablation: Annotated[str | None, what_option(help="Add the variants of vtranm (Table 4) or gradtoken.")] = None,
    target: Annotated[
        str | None, what_option(help="Explain the predicted class, or the label of the data set.")
    ] = None,
    preset: options.Preset = "recommended",
    limit: Annotated[int | None, what_option(help="Largest number of examples of every data set.", min=1)] = None,
    subset: Annotated[int | None, what_option(help="Examples for methods that run the model again.", min=1)] = None,
    plan: Annotated[Path | None, what_option(help="A YAML file instead of these options.")] = None,
    quick: Annotated[bool, what_option("--quick", help="The embedded models on inputs in the package.")] = False,  # noqa: FBT002
    batch: Size = 16,
    forward_batch: Annotated[int, run_option(help="Perturbed inputs run together.", min=1)] = 64,
    device: options.Device = "cpu",
    dtype: Annotated[
        str, run_option(help="Precision of the perturbed passes: float32, bfloat16, float16.")
    ] = "float32",
    seed: Seed = 0,
    engine: Annotated[str, run_option(help="local, or ray for a cluster.")] = "local",
    ray_address: options.RunAddress = None,
    ray_workers: options.RunWorkers = None,
    ray_gpu_share: Annotated[float, run_option(help="Share of a GPU for each worker.")] = 1.0,
    output: Annotated[Path, options.output_option(help="The results file; an existing one is continued.")] = RESULTS,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Run a plan, and keep the results."""
    check_seed(seed)

    from vitrail.apps.cli.session import silent
    from vitrail.evaluate import bench

    worker = bench.find_engine(engine, bench.Cluster(ray_address, ray_workers, ray_gpu_share))
    settings: dict[str, Any] = dict(
        preset=preset,
        target=target,
        limit=limit,
        batch=batch,
        forward_batch=forward_batch,
        device=device,
        dtype=dtype,
        seed=seed,
    )
    if quick or plan is not None:
        if model or arch or data or method or protocol or metric or ablation or subset or (quick and plan):
            raise OptionError(
                f"{'--quick' if quick else '--plan'} already names the data: leave out the other options."
            )
        made = changed(quick_plan() if quick else bench.read_plan(plan or ""), settings)
    else:
        chosen = method if method is not None else ([] if ablation else ["usual"])
        made = bench.Plan(
            models=specs_of(model or [], arch),
            data=tuple(bench.parse_data(text) for text in data or []),
            trials=bench.parse_trials(chosen, subset),
            protocols=bench.protocols_of(tuple(protocol or ["vitrail"])),
            ablation=ablation,
            metrics=tuple(metric) if metric else None,
            **settings,
        )
    try:
        with silent(), bar() as watch:
            found = bench.run(made, output, engine=worker, watch=watch)
    except KeyboardInterrupt as error:
        note("stopped. What was computed is kept; the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from error
    old = found.done - found.fresh
    note(f"{found.done} examples, {found.fresh} computed now" + (f", {old} were there already" if old else ""))
    if found.skipped:
        note(f"{found.skipped} results were skipped; the table says why")
    note_left_out(made)
    note_older(found, output)
    if quick:
        typer.echo(bench.render(bench.tables(output, seed=seed)), nl=False)
    note(f"wrote {output}; now: vitrail bench table {output}, vitrail bench plot {output} -o curves.png")


def changed(plan: "bench.Plan", settings: dict[str, Any]) -> "bench.Plan":
    """The plan with those settings that a user gave, that is, that are not the defaults."""
    usual = {field.name: field.default for field in fields(plan)}
    return replace(plan, **{name: value for name, value in settings.items() if value != usual[name]})


def quick_plan() -> "bench.Plan":
    """The embedded models on inputs that come with the package, in about a minute on two cores."""
    from vitrail.evaluate import bench

    return bench.Plan(
        models=(bench.ModelSpec("photo"), bench.ModelSpec("sentiment")),
        data=(bench.DataSpec("demo_pictures", limit=QUICK_PICTURES), bench.DataSpec("demo_sentences")),
        trials=tuple(bench.Trial(name) for name in QUICK_METHODS),
        protocols=bench.protocols_of(("vitrail",)),
    )


@reported
def table(
    results: ResultsArgument = RESULTS,
    form: Annotated[str, typer.Option("--format", "-f", help="markdown, latex or csv.")] = "markdown",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: the terminal.")] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Print the tables, or write them to a file."""
    check_not_replaced([output], [results])
    check_seed(seed)

    from vitrail.evaluate import bench
    from vitrail.storage import write_bytes

    text = bench.render(bench.tables(results, seed=seed), form)
    if output is None:
        typer.echo(text, nl=False)
        return
    note(f"wrote {write_bytes(output, text.encode())}")


@reported
def plot(
    results: ResultsArgument = RESULTS,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png or .pdf file.")] = Path("curves.png"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Draw the curves."""
    check_not_replaced([output], [results])
    check_file(output, (".png", ".pdf", ".svg"))

    from vitrail.evaluate import bench
    from vitrail.storage import save_figure

    note(f"wrote {save_figure(bench.curves(results), output)}")


def specs_of(names: list[str], arch: str | None) -> "tuple[bench.ModelSpec, ...]":
    """Models as the bench opens them; an architecture belongs to a `.safetensors` file."""
    from vitrail.evaluate import bench

    return tuple(bench.ModelSpec(name, arch if name.endswith(".safetensors") else None) for name in names)


def check_seed(seed: int) -> None:
    """Refuse a seed that does not fit into 64 bits."""
    if not SEEDS[0] <= seed <= SEEDS[1]:
        raise OptionError(f"--seed {seed} does not fit into 64 bits: choose one from {SEEDS[0]} to {SEEDS[1]}.")


def note_left_out(plan: "bench.Plan") -> None:
    """Print one line about methods that `all` leaves out."""
    from vitrail.evaluate import bench

    unused = bench.left_out(plan)
    if unused:
        note(f"left out, since they do not explain such data, models or presets: {', '.join(unused)}")


def note_older(found: "bench.Progress", path: Path) -> None:
    """One line about results of the same names that this run did not go on with."""
    if found.older:
        parts = ", ".join(found.changed)
        note(
            f"{path} also holds {found.older} older runs of the same names, which differ in {parts}: "
            "they are kept in tables of their own, and none of their numbers was used"
        )


@contextmanager
def bar() -> "Iterator[Watch]":
    """A progress bar on the terminal with examples a second and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}", style="progress.data.speed"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as shown:
        task = shown.add_task("loading", total=None, speed="")

        def watch(progress: "bench.Progress") -> None:
            elapsed = shown.tasks[0].elapsed or 0.0
            shown.update(
                task,
                total=progress.total,
                completed=progress.done,
                description=progress.what or "reading results",
                speed=f"{progress.fresh / elapsed:.2g} examples/s" if progress.fresh and elapsed else "",
            )

        yield watch


FEW = 10
"""With fewer inputs than this a bootstrap says little."""


def _command(protocol: str, limit: int, show: "Callable[[list[bench.Table]], None]") -> Callable[..., None]:
    """A command that runs methods under a protocol on one model and data set."""

    @reported
    def command(  # noqa: PLR0913  (one parameter for each option of the command line)
        model: options.ModelArgument,
        data: Annotated[
            str,
            typer.Argument(metavar="DATA", help="A folder of pictures, a .txt file, or NAME=PATH.", show_default=False),
        ],
        arch: options.Arch = None,
        method: Methods = None,
        limit: Annotated[int, typer.Option(help="Use only this many inputs, evenly spaced.", min=2)] = limit,
        device: options.Device = "cpu",
        batch: Size = 16,
        seed: Seed = 0,
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Keep the results in this file.")] = None,
        debug: options.Debug = False,  # noqa: FBT002
    ) -> None:
        check_seed(seed)

        from vitrail.apps.cli.session import silent
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
        latest: list[bench.Progress] = []
        with silent(), bar() as watch:

            def both(progress: "bench.Progress") -> None:
                latest[:] = [progress]
                watch(progress)

            found = bench.measure(plan, output, watch=both)
        if output is not None and latest:
            note_older(latest[0], output)
        show(found)
        note_left_out(plan)

    return command


def show_tables(found: "list[bench.Table]") -> None:
    """Print the tables."""
    from vitrail.evaluate import bench

    typer.echo(bench.render(found), nl=False)


def show_ranking(tables: "list[bench.Table]") -> None:
    """Print the methods from best to worst."""
    from vitrail.evaluate import bench

    found, rows = bench.ranking(tables[0]), []
    for place, rank in enumerate(found.ranks, 1):
        e = rank.estimate
        verdict = "best" if e.best else ("not significantly different from the best" if rank.as_good else "")
        rows.append((place, rank.method, f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}", e.count, verdict))
    show_table(("rank", "method", f"{found.measure} ↑", "95 % interval", "inputs", "verdict"), rows)
    for line in found.table.notes:
        note(line)
    if (most := max(rank.estimate.count for rank in found.ranks)) < FEW:
        note(f"note: {most} inputs are too few to rank methods by; give at least {FEW}.")


recommend = _command("vitrail", 32, show_ranking)
sanity = _command("sanity", 16, show_tables)
agreement = _command("agreement", 32, show_tables)
