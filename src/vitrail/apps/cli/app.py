"""The commands and their manual."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from vitrail.api import DEFAULT_METHOD
from vitrail.apps.cli import (
    auditing,
    benching,
    detailing,
    guiding,
    options,
    reports,
    rewriting,
    rewriting_words,
    serving,
    transferring,
)
from vitrail.apps.cli.catalogue import show_methods
from vitrail.apps.cli.demonstrating import run_demo
from vitrail.apps.cli.examining import run_doctor
from vitrail.apps.cli.explaining import Request, run
from vitrail.apps.cli.manual import COMPARE, EXPLAIN, MANUAL
from vitrail.apps.cli.reporting import reported
from vitrail.apps.cli.sources import Source
from vitrail.apps.cli.specs import Spec, parse_spec

app = typer.Typer(
    name="vitrail",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(help=MANUAL)
def _vitrail(version: options.Version = False) -> None:  # noqa: FBT002
    pass


def _explaining(default: Sequence[Spec] | None) -> Callable[..., None]:
    """A command that computes these methods where none is named; None stands for all that apply."""

    @reported
    def explain(  # noqa: PLR0913  (one parameter for each option of the command line)
        model: options.Model,
        given: options.Given = None,
        arch: options.Arch = None,
        method: options.Methods = None,
        target: options.Targets = None,
        versus: options.Versus = None,
        preset: options.Preset = "recommended",
        device: options.Device = "cpu",
        pair: options.Pair = None,
        question: options.Question = None,
        context: options.Context = None,
        squash: options.Squash = False,  # noqa: FBT002
        output: options.Output = None,
        debug: options.Debug = False,  # noqa: FBT002
    ) -> None:
        specs = [parse_spec(text, auto=True) for text in method] if method else default
        source = Source(given, pair=pair, question=question, context=context, squash=squash)
        run(Request(source, model, arch, device, specs, target or [], versus, preset, output))

    return explain


app.command("explain", help=EXPLAIN)(_explaining([(DEFAULT_METHOD, {})]))
app.command("compare", help=COMPARE)(_explaining(None))
app.command("guide", help=guiding.HELP)(guiding.command)
app.command("detail", help=detailing.HELP)(detailing.command)
app.command("audit", help=auditing.HELP)(auditing.command)
app.command("report", help=reports.HELP)(reports.command)
app.command("transfer", help=transferring.HELP)(transferring.command)
app.command("rewrite", help=rewriting_words.HELP)(rewriting.command)
app.command("app", help=serving.HELP)(serving.command)


@app.command("demo")
@reported
def _demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("vitrail-demo"),
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Explain two pictures and three sentences with the embedded models: offline, in under a minute."""
    run_demo(output)


@app.command("methods")
@reported
def _methods(
    name: Annotated[str | None, typer.Argument(help="A method, for its options and presets.")] = None,
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """List the methods, or the options and presets of one."""
    show_methods(name)


@app.command("doctor")
@reported
def _doctor(
    model: options.ModelArgument,
    arch: options.Arch = None,
    device: options.Device = "cpu",
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Test on your model, with a dummy input, that what is recorded is what it computed.

    For every attention layer A·v is computed again and compared with the layer's own output, and the logits must be
    equal bit for bit with and without recording. The exit code is 1 if anything differs.
    """
    run_doctor(model, arch, device)


app.add_typer(benching.app, name="bench")
