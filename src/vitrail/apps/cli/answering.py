"""`vitrail answer`: generate an answer with a language model on disk, and show what it rests on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.screen import reported
from vitrail.errors import InputError, MissingExtraError, ModelError
from vitrail.models.silence import silent

if TYPE_CHECKING:
    from vitrail.tools.generations import Generation

HELP = """Generate an answer with a language model on disk, and show which passages each of its parts rests on.

Examples:

  vitrail answer "Who wrote the letter?" --model ./lm --context letter.txt --out answer.html

  vitrail answer "Anna: ring. Boris: key. Anna:" --model lookup
"""
EMBEDDED = "lookup"


def load_model(path: Path) -> tuple[Any, Any]:
    """A causal language model and its tokenizer from a folder; `lookup` is the one inside the package."""
    if str(path) == EMBEDDED and not path.exists():
        from vitrail.models import zoo

        found = zoo.load(EMBEDDED)
        return found.model, found.preprocess.tokenizer  # pyright: ignore[reportFunctionMemberAccess]
    try:
        with silent():
            import transformers
    except ImportError as error:
        raise MissingExtraError(
            "a language model is loaded with transformers: pip install 'vitrail[answers]'"
        ) from error
    if not path.is_dir():
        raise ModelError(f"{path} is no folder. Give one with config.json, weights and the tokenizer's files.")
    try:
        with silent():  # once more, since transformers has bars only now that it is imported
            model = transformers.AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ModelError(f"{path} holds no causal language model that can be read: {why}") from error
    return model.eval(), tokenizer


def read_context(paths: list[Path]) -> list[str]:
    """The documents in these files."""
    try:
        return [path.read_text(encoding="utf-8") for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"a file of the context cannot be read as text: {error}") from error


def prompt_for(tokenizer: Any, prompt: str, *, chat: bool) -> str | list[dict[str, str]]:  # noqa: ANN401
    """The prompt as it is, or as a message where the tokenizer has a chat template."""
    templated = chat and getattr(tokenizer, "chat_template", None) is not None
    return [{"role": "user", "content": prompt}] if templated else prompt


@reported
def command(  # noqa: PLR0913  (one parameter for each option of the command line)
    prompt: Annotated[str, typer.Argument(help="The question.")],
    model: Annotated[Path, typer.Option("--model", "-m", help="A folder with a causal language model, or lookup.")],
    context: Annotated[
        list[Path] | None, typer.Option("--context", "-c", help="Text files, one document each.")
    ] = None,
    given: Annotated[str | None, typer.Option("--answer", help="Explain this answer; nothing is generated.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="A method; several give intervals.")] = None,
    unit: Annotated[str, typer.Option(help="token, word, sentence or answer.")] = "sentence",
    scalar: Annotated[str, typer.Option(help="log_probability, or log_odds.")] = "log_probability",
    tokens: Annotated[int, typer.Option("--tokens", help="How many tokens are generated at most.")] = 64,
    cite: Annotated[int, typer.Option("--cite", help="How many passages are shown for each part.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", help="A file to write: .html for a page, else JSON.")] = None,
    hops: Annotated[
        int | None, typer.Option("--hops", help="Hops through what was generated before the answer.")
    ] = None,
    reasoning: Annotated[str | None, typer.Option("--reasoning", help="Text that ends the reasoning.")] = None,
    chat: Annotated[bool, typer.Option("--chat/--plain", help="Use the chat template if there is one.")] = True,  # noqa: FBT002
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Generate and explain an answer."""
    from vitrail.tools.generations import generate

    documents = read_context(context or []) or None
    loaded, tokenizer = load_model(model)
    found = generate(
        loaded,
        tokenizer,
        prompt_for(tokenizer, prompt, chat=chat),
        answer=given,
        documents=documents,
        unit=unit,
        method=method or None,
        scalar=scalar,
        max_new_tokens=tokens,
        hops=hops,
        reasoning=reasoning,
    )
    typer.echo(shown(found, cite))
    if out is not None:
        found.save(out)
        typer.echo(f"written to {out}")


def shown(found: "Generation", count: int) -> str:
    """The answer in lines: each part, and the passages it rests on."""
    lines = []
    for part, cited in zip(found.units, found.cite(count), strict=True):
        lines.append(part.text.strip())
        for one in cited:
            text = " ".join(one.passage.text.split())
            between = f" ({one.low:.0%} to {one.high:.0%})" if len(found.tables) > 1 else ""
            lines.append(f"  {one.score:4.0%}{between}  {one.passage.source}: {text}")
    name, sink = next(iter(found.sinks.items()))
    beside = f"{name}; the first token holds {float(sink.mean()):.0%} of the scores on the context"
    template = float(found.template_share().mean())
    return "\n".join([*lines, f"{beside}, the chat template {template:.0%}." if template else f"{beside}."])
