"""The commands `bench run`, `table` and `plot`; those on one's own inputs are in `bench_own`."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.apps.cli import bench_words as words
from vitrail.apps.cli import options
from vitrail.apps.cli.bench_bar import bar
from vitrail.apps.cli.bench_own import COMMANDS, specs_of, tell_left_out, tell_older
from vitrail.apps.cli.opening import silent
from vitrail.apps.cli.outputs import check_apart
from vitrail.apps.cli.reporting import note, reported
from vitrail.errors import OptionError
from vitrail.evaluate import bench
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
        made = bench.Plan(
            models=specs_of(model or [], arch),
            data=tuple(bench.parse_data(text) for text in data or []),
            trials=bench.parse_trials(chosen, subset),
            protocols=bench.protocols_of(tuple(protocol or ["vitrail"])),
            ablation=ablation,
            metrics=tuple(metric) if metric else None,
            **settings,
        )
    tell_left_out(made)
    with silent(), bar() as watch:
        found = bench.run(made, output, engine=worker, watch=watch)
    old = found.done - found.fresh
    note(f"{found.done} examples, {found.fresh} computed now" + (f", {old} were there already" if old else ""))
    if found.skipped:
        note(f"{found.skipped} results were skipped; the table says why")
    tell_older(found, output)
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
    check_apart([output], [results])
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
    check_apart([output], [results])
    note(f"wrote {save_figure(bench.curves(results), output)}")


for _name, (_help, _command) in COMMANDS.items():
    app.command(_name, help=_help)(_command)
