"""The table of commands, and how usage errors are reported."""

import errno
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from vitrail.apps.cli import bench, explain, guide, options, pages, rewrite
from vitrail.apps.cli.screen import close_output, note

MANUAL = """See what a Transformer looked at, in an image or a text.

[bold]First steps[/]

  vitrail demo                          two small models, offline
  vitrail explain cat.png --model vit_tiny_patch16_224 -o map.png
  vitrail explain "A dull, lifeless film." --model sentiment
  vitrail compare cat.png --model vit_tiny_patch16_224 -o sheet.png

[bold]Choosing what to explain[/]

  --target boxer --target "tiger cat"   two rows, one for each class
  --target boxer --versus "tiger cat"   what speaks for one, not the other
  --target 281                          a class by its index
  --target none                         what the model predicts (the default)

[bold]Contrasts[/]

  vitrail guide cat.png -m photo        beside a picture of another class
  vitrail detail cat.png -m photo       the first class against the second
  vitrail audit photos/ -m photo        labels that the model doubts

[bold]Choosing how[/]

  vitrail methods                       every method, with its paper
  vitrail methods gradtoken             its options and presets
  --method gae --method "gradtoken(scheme=none, depth=2)" --preset paper
  --plugin my_methods.py --method mine  a method of your own

[bold]Models[/]

  photo, sentiment, lookup              small models in the package
  vit_tiny_patch16_224                  a timm name
  google/vit-base-patch16-224           a Hugging Face id
  ./my-model                            a Hugging Face folder
  weights.safetensors --arch NAME       weights of a timm architecture

  Pickles (.bin, .pt, .pth) are refused, and code that comes with a model
  never runs. [bold]vitrail structure MODEL[/] proves on your model that what is
  recorded is what it computed.

[bold]Output[/]

  -o map.png, .pdf, .html               a picture; .json, .npz: the numbers
  -o -                                  JSON on stdout, a line for each map
  In a pipe, tables are tab-separated.

Errors are one line on stderr. The exit code is 1, or 2 where the command
itself is written wrongly; --debug shows where an error comes from.
"""


class Command(TyperCommand):
    """A command that refuses an option given twice, where only the last would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """The arguments, checked and read."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, times in Counter(order).items():
            if times > 1 and not getattr(param, "multiple", False) and param.param_type_name == "option":
                ctx.fail(f"{'/'.join(param.opts)} is given {times} times, but it takes one value.")
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """Commands whose usage errors are one line, like every other error."""

    def main(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401
        """Run a command line and exit."""
        more.pop("standalone_mode", None)
        try:
            sys.exit(super().main(*args, **more, standalone_mode=False) or 0)
        except OSError as error:
            if error.filename is not None or error.errno not in UNWRITABLE:
                raise
            close_output()
            if error.errno != errno.EPIPE:  # else the reader has closed the pipe
                note(f"error: stdout cannot be written: {error.strerror}.")
            sys.exit(1)
        except Exception as error:
            if not hasattr(error, "format_message"):  # not a usage error of the command line
                raise
            sys.exit(_show_usage_error(error))


UNWRITABLE = {errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG}
"""What the system says where stdout takes no more."""


def _show_usage_error(error: Any) -> int:  # noqa: ANN401
    """Print a usage error in one line, or the help where there were no arguments; the exit code."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help())
        return 2
    where = f" See {context.command_path} --help." if context is not None else ""
    note(f"error: {error.format_message().rstrip('.')}.{where}")
    return int(getattr(error, "exit_code", 2))


SETTINGS: dict[str, Any] = {
    "cls": Group,
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
COMMANDS = {
    "explain": (explain.EXPLAIN, explain.explain),
    "compare": (explain.COMPARE, explain.compare),
    "generate": (explain.ANSWER, explain.answer),
    "answer": ("The same as [bold]vitrail generate[/].", explain.answer),
    "guide": (guide.GUIDE, guide.guide),
    "detail": (guide.DETAIL, guide.detail),
    "audit": (guide.AUDIT, guide.audit),
    "report": (pages.REPORT, pages.report),
    "transfer": (rewrite.TRANSFER, rewrite.transfer),
    "rewrite": (rewrite.REWRITE, rewrite.rewrite),
    "app": (pages.APP, pages.app),
    "demo": (pages.DEMO, pages.demo),
    "methods": (pages.METHODS_HELP, pages.methods),
    "structure": (pages.DOCTOR, pages.doctor),
    "doctor": ("The same as [bold]vitrail structure[/].", pages.doctor),
}
"""Name -> help and function. A new command is one line here."""
BENCH = {
    "run": (bench.RUN, bench.run),
    "table": (bench.TABLE, bench.table),
    "plot": (bench.PLOT, bench.plot),
    "recommend": (bench.RECOMMEND, bench.recommend),
    "sanity": (bench.SANITY, bench.sanity),
    "agreement": (bench.AGREEMENT, bench.agreement),
}
"""The commands below `vitrail bench`."""


def _with_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that also takes `--plugin`, whose modules are imported before anything else is read."""

    @functools.wraps(command)
    def run(plugin: options.Plugin = None, **given: Any) -> None:  # noqa: ANN401
        command(**given)

    own = inspect.signature(command)
    option = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=options.Plugin)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # pyright: ignore
    run.__annotations__ = {**command.__annotations__, "plugin": options.Plugin}
    return run


app = typer.Typer(name="vitrail", **SETTINGS)
_bench = typer.Typer(help=bench.MANUAL, **SETTINGS)
for _name, (_help, _function) in COMMANDS.items():
    app.command(_name, help=_help, cls=Command)(_with_plugins(_function))
for _name, (_help, _function) in BENCH.items():
    _bench.command(_name, help=_help, cls=Command)(_with_plugins(_function))
app.add_typer(_bench, name="bench")


@app.callback(help=MANUAL)
def _vitrail(version: options.Version = False) -> None:  # noqa: FBT002
    pass
