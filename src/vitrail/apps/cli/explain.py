"""The commands `explain` and `compare`, of an input, a folder, or a folder into a Parquet data set; and `answer`."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.apps.cli import options
from vitrail.apps.cli.options import (
    Source,
    check_file,
    check_folder,
    check_model,
    check_not_replaced,
    check_presets,
    check_source,
    distinct,
)
from vitrail.apps.cli.screen import counted, note, plain, reported
from vitrail.errors import InputError, OptionError, OutputError, VitrailError, suggest
from vitrail.methods import DEFAULT_METHOD, Spec, parse_spec
from vitrail.models.folders import images_in
from vitrail.models.texts import is_blank, read_text

if TYPE_CHECKING:
    from vitrail.apps.cli.session import ExplainedTarget
    from vitrail.models.loading import Loaded, Sample
    from vitrail.targets import Target
    from vitrail.tools.generations import Generation

EXPLAIN = """Explain one input, or every image of a folder.

Without -o the result is printed: the tokens of a text in colour,
the strongest patches of an image. An image becomes a map over
exactly what the model saw of it.

[bold]Examples[/]

  vitrail explain cat.png -m vit_tiny_patch16_224 --target tabby -o map.png
  vitrail explain cat.png -m weights.safetensors --arch vit_tiny_patch16_224
  vitrail explain photos/ -m vit_tiny_patch16_224 -o maps/
  vitrail explain photos/ -m vit_tiny_patch16_224 -o maps/ --format parquet
  vitrail explain "It never comes to life." -m ./sst2-bert --method attcat
  vitrail explain "A man sleeps." --pair "A man runs." -m ./nli-bert
  vitrail explain --question "Who?" --context story.txt -m ./squad-bert
  echo "The capital of France is" | vitrail explain - -m ./gpt2 -t " Paris"
  vitrail explain photo.jpg --question "What is this?" -m ./vlm -o map.png
  vitrail explain speech.wav -m ./whisper --target all -o words.html
  vitrail explain "The house is small." -m ./translator --target Haus
  vitrail explain street.jpg -m ./detr --target car -o car.png
"""

COMPARE = """Compare methods on one input; without --method, six of different kinds.

Methods are columns, targets are rows. The same method may appear with
several sets of options.

[bold]Examples[/]

  vitrail compare cat.png -m vit_tiny_patch16_224 -o sheet.png
  vitrail compare catdog.png -m weights.safetensors
      --arch vit_tiny_patch16_224 -t boxer -t "tiger cat" -o sheet.png
  vitrail compare cat.png -m vit_tiny_patch16_224 -o sheet.pdf
      --method tokentm --method "tokentm(ffn=false)"
"""


def _command(default: Sequence[Spec] | None) -> Callable[..., None]:
    """A command that computes these methods where none is named; None stands for a readable set of them."""

    @reported
    def command(  # noqa: PLR0913  (one parameter for each option of the command line)
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
        form: options.Format = "pictures",
        engine: options.Engine = "local",
        ray_address: options.RayAddress = None,
        ray_workers: options.RayWorkers = None,
        debug: options.Debug = False,  # noqa: FBT002
    ) -> None:
        specs = [parse_spec(text, auto=True) for text in method] if method else default
        source = Source(given, pair=pair, question=question, context=context, squash=squash)
        check_source(source, model)
        check_model(model)
        check_presets(specs or (), preset)
        ray = {"engine": engine, "address": ray_address, "workers": ray_workers}
        check_format(form, folder=source.folder, **ray)
        output = _checked_output(source, model, output)

        from vitrail.apps.cli import session, show

        session.check_specs(specs or (), preset)
        loaded = session.open_model(model, arch, device)
        if loaded.task in ("writing", "boxes"):
            if source.folder is not None or versus is not None:
                raise InputError(f"{loaded.name} takes one input at a time: name one, and leave out --versus.")
            methods = specs or [(DEFAULT_METHOD, {})]
            explain = partial(session.compare, loaded.model, methods=methods, preset=preset)
            run = show.explain_boxes if loaded.task == "boxes" else show.explain_writing
            run(loaded, source, target or [], explain, output)
            return
        chosen = specs if specs is not None else session.readable_set(preset, loaded.kind)
        session.check_specs(chosen, preset, loaded.kind)
        targets = session.find_targets(loaded, target or [], versus)
        if source.folder is not None and loaded.kind != "image":
            raise InputError(f"{loaded.name} reads text, but {source.folder} is a folder, which is read as images.")
        if form == "parquet" and output is not None:
            _explain_data_set(loaded, source, chosen, targets, preset, output, ray)
            return
        lenient = specs is None  # methods that were not named may be left out
        explain = partial(session.explain_sample, loaded, specs=chosen, targets=targets, preset=preset, lenient=lenient)
        if source.folder is not None and output is not None:
            _explain_folder(loaded, source, source.folder, output, explain)
        else:
            sample = session.sample_of(source, loaded)
            show.present(loaded, sample, explain(sample), output)

    return command


def _checked_output(source: Source, model: str, output: Path | None) -> Path | None:
    """Return the path of the result, after a check that it replaces nothing that is read."""
    files = [source.given, source.pair, source.question, source.context, model]
    if source.folder is not None:
        output = check_folder(output)
        _check_places(source.folder, output, files)
    else:
        check_file(output)
        check_not_replaced([output], files)
    return output


def _check_places(folder: Path, place: Path, files: list[str | None]) -> None:
    """Raise if a picture would be replaced by its map."""
    if place.exists() and place.samefile(folder):
        raise OutputError(f"{place} is the folder of the images themselves: name another folder for the pictures.")
    with suppress(InputError):  # a folder without images is reported later
        images = images_in(folder)
        check_not_replaced([place / name for name in _names(images).values()], [*images, *files])


def _explain_folder(
    loaded: "Loaded",
    source: Source,
    folder: Path,
    place: Path,
    explain: "Callable[[Sample], list[ExplainedTarget]]",
) -> None:
    """One picture for each image; those that fail are named at the end."""
    from vitrail.apps.cli.session import sample_of
    from vitrail.apps.cli.show import write

    images = images_in(folder)
    place.mkdir(exist_ok=True)
    names = _names(images)
    failed: list[str] = []
    with counted("explaining") as moved:
        for number, image in enumerate(images):
            moved(number, len(images))
            try:
                sample = sample_of(replace(source, given=str(image)), loaded)
                write(place / names[image], explain(sample), sample)
            except VitrailError as error:
                failed.append(f"failed: {error}")
    note(f"wrote {len(images) - len(failed)} of {len(images)} pictures to {place}")
    for line in failed:
        note(line)
    if failed:
        raise typer.Exit(1)


def _names(images: list[Path]) -> dict[Path, str]:
    """The name of each picture; the image's ending stays in it where two images share a stem."""
    stems = Counter(image.stem.casefold() for image in images)
    names = [image.name if stems[image.stem.casefold()] > 1 else image.stem for image in images]
    return {image: f"{name}.png" for image, name in zip(images, distinct(names), strict=True)}


explain = _command([(DEFAULT_METHOD, {})])
compare = _command(None)


FORMATS = ("pictures", "parquet")
BATCH = {"cuda": 64}
FEW = 8
"""Images that are explained together, by type of device, and elsewhere."""


def check_format(form: str, *, folder: Path | None, engine: str, address: str | None, workers: int | None) -> None:
    """Refuse what does not go together, before anything is loaded."""
    if form not in FORMATS:
        raise OptionError(f"--format {form} is not a choice. {suggest(form, FORMATS)}")
    if form == "parquet" and folder is None:
        raise OptionError("--format parquet is for a folder of images. One explanation: -o scores.npz.")
    if form != "parquet" and engine != "local":
        raise OptionError("--engine is for data sets: --format parquet.")
    for name, value in {"--ray-address": address, "--ray-workers": workers}.items():
        if engine != "ray" and value is not None:
            raise OptionError(f"{name} is for --engine ray.")


def _explain_data_set(
    loaded: "Loaded",
    source: Source,
    specs: Sequence[Spec],
    targets: "Sequence[Target | None]",
    preset: str,
    place: Path,
    ray: dict[str, Any],
) -> None:
    """All images of a folder; those that are none are named at the end."""
    from vitrail.api.many import explain_many, picture_batches
    from vitrail.evaluate.bench.opened import setup_hash

    assert source.folder is not None
    if len(specs) != 1 or len(targets) > 1:
        raise OptionError("a data set holds one method and one target: name one --method, and one --target at most.")
    ((method, options),) = specs
    images, broken = _readable(source.folder)
    device, squash = next(loaded.model.parameters()).device.type, source.squash
    preparation = f"squash={squash} {setup_hash(loaded)}"
    prepare = partial(_inputs, loaded, squash)
    batches = picture_batches(images, prepare, size=BATCH.get(device, FEW), preparation=preparation)
    target: Target | int | None = targets[0] if targets else None
    if target is not None and target.name == "logit" and isinstance(target.first, int):
        target = target.first  # explanations of one logit, given by its index, are recorded on CUDA
    made: Any = {**options, "preset": options.get("preset", preset)}
    found = explain_many(loaded.model, batches, method, target, output=place, **ray, **made)
    note(f"{found.inputs} images in {place}, {found.explained} of them explained now")
    for path in broken:
        note(f"left out: {path.name} is no image that can be read")
    if broken:
        raise typer.Exit(1)


def _readable(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images of a folder by their first bytes, and the files that are named like images and are none."""
    from vitrail.models.loading.images import read_header, reading

    images, sound = images_in(folder), []
    for path in images:
        with suppress(InputError), reading(path), path.open("rb") as file:
            read_header(file)
            sound.append(path)
    if not sound:
        raise InputError(f"none of the {len(images)} images of {folder} can be read.")
    return sound, sorted(set(images) - set(sound))


def _inputs(loaded: "Loaded", squash: bool, image: Any) -> Any:  # noqa: ANN401, FBT001
    return loaded.image(image, squash=squash).inputs


ANSWER = """Generate an answer with a language model on disk, and show which passages each of its parts rests on.

Examples:

  vitrail generate "Who wrote the letter?" --model ./lm --context letter.txt -o answer.html

  vitrail generate "Anna: ring. Boris: key. Anna:" --model lookup
      --method sentence_drop
"""


def read_document(path: Path) -> str:
    """The text of a file."""
    text = read_text(path)
    if is_blank(text):
        raise InputError(f"{path} is empty, so no answer rests on it. Leave it out.")
    return text


@reported
def answer(  # noqa: PLR0913  (one parameter for each option of the command line)
    prompt: Annotated[str, typer.Argument(help="The question.")],
    model: options.LanguageModel,
    context: Annotated[
        list[Path] | None, typer.Option("--context", "-c", help="Text files, one document each.")
    ] = None,
    given: Annotated[str | None, typer.Option("--answer", help="Explain this answer; nothing is generated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="A method; several give intervals.")] = None,
    unit: Annotated[str, typer.Option(help="token, word, sentence or answer.")] = "sentence",
    scalar: Annotated[str, typer.Option(help="log_probability, or log_odds.")] = "log_probability",
    tokens: Annotated[int, typer.Option(help="How many tokens are generated at most.")] = 64,
    cite: Annotated[int, typer.Option(help="How many passages are shown for each part.")] = 3,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", "--out", help="A file to write: .html for a page, else JSON.")
    ] = None,
    hops: Annotated[int | None, typer.Option(help="Hops through what was generated before the answer.")] = None,
    reasoning: Annotated[str | None, typer.Option(help="Text that ends the reasoning.")] = None,
    chat: Annotated[bool, typer.Option("--chat/--plain", help="Use the chat template if there is one.")] = True,  # noqa: FBT002
    debug: options.Debug = False,  # noqa: FBT002
) -> None:
    """Generate and explain an answer."""
    documents = [read_document(path) for path in context or []]
    check_model(model)

    from vitrail.apps.cli.session import open_model
    from vitrail.tools.generations import generate

    loaded = open_model(model, None, task="causal")
    templated = chat and getattr(loaded.tokenizer, "chat_template", None) is not None
    found = generate(
        loaded.model,
        loaded.tokenizer,
        [{"role": "user", "content": prompt}] if templated else prompt,
        answer=given,
        documents=documents or None,
        unit=unit,
        method=method or None,
        scalar=scalar,
        max_new_tokens=tokens,
        hops=hops,
        reasoning=reasoning,
    )
    typer.echo(answer_lines(found, cite))
    if output is not None:
        found.save(output)
        typer.echo(plain(f"written to {output}"))


def answer_lines(found: "Generation", count: int) -> str:
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
