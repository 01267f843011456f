"""Hugging Face models from a folder, the cache or the hub: safetensors only, and never code from a repository.

Some of them write text about a source: translations of a text, transcripts of a sound, answers about a picture.
"""

import json
import os
import wave
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import InputError, MissingExtraError, ModelError, one_line
from vitrail.models import silent
from vitrail.models.loading.loaded import Loaded, Sample, Sound
from vitrail.models.texts import Span, check_text, pieces_of, words

TASKS: dict[str, tuple[str, str]] = {
    "ForImageClassification": ("AutoModelForImageClassification", "image"),
    "ForImageClassificationWithTeacher": ("AutoModelForImageClassification", "image"),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "sequence"),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "question"),
    "ForCausalLM": ("AutoModelForCausalLM", "causal"),
    "LMHeadModel": ("AutoModelForCausalLM", "causal"),
    "ForObjectDetection": ("AutoModelForObjectDetection", "boxes"),
    "ForConditionalGeneration": ("", "writing"),
    "MTModel": ("", "writing"),
    "EncoderDecoderModel": ("", "writing"),
}
"""Endings of class names in `config.architectures` -> the auto class that loads them, and what they do.

What loads a model that writes text depends on what it is given (`AUTO`).
"""


CAUSAL = TASKS["ForCausalLM"]
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".tar"})
"""Endings of files that can run code when they are opened."""
SAFE = ".safetensors"
INDEX = f"{SAFE}.index.json"
SAFE_INDEX = f"model{INDEX}"


def wrong_task(name: str, task: str) -> ModelError:
    """The error of a model that is no causal language model where one is needed."""
    return ModelError(f"{name!r} is a model for the task {task!r}, but a causal language model is needed here.")


def load_huggingface(name: str, *, pickles: bool = False, task: str | None = None, pretrained: bool = True) -> Loaded:
    """A model for images, sequences, questions, next tokens or whole texts, with its processor or tokenizer."""
    if (name.startswith((".", os.sep)) or name.endswith(os.sep)) and not Path(name).is_dir():
        raise ModelError(f"there is no model at {name}.")
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"{name!r} is no timm name, and Hugging Face models need the package transformers: "
            "pip install 'vitrail[huggingface]'"
        ) from error

    def part(kind: str, **options: Any) -> Any:  # noqa: ANN401
        """Return a part from the library, or raise an error that says in one line why there is none."""
        try:
            return getattr(transformers, kind).from_pretrained(name, trust_remote_code=False, **options)
        except Exception as error:  # the hub's errors have no common root
            raise ModelError(f"{name!r} could not be loaded from {_where(name)}: {one_line(error)}") from error

    with silent():
        return _load(name, part, task, pickles=pickles, pretrained=pretrained)


def _where(name: str) -> str:
    return "this folder" if Path(name).is_dir() else "timm's names, the folders here, the cache or the hub"


Part = Callable[..., Any]
"""Fetches what comes with a model by the name of its class in transformers, with options of `from_pretrained`."""


def _load(name: str, part: Part, wanted: str | None, *, pickles: bool, pretrained: bool) -> Loaded:
    config = part("AutoConfig")
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ModelError(f"the config of {name!r} asks for {layers:,} layers; at most {MOST_LAYERS:,} are loaded.")
    auto, task = _task(name, config)
    if wanted == "causal" and task == "writing":  # some models of pictures and text are language models too
        auto, task = CAUSAL
    elif wanted not in (None, task):
        raise wrong_task(name, task)
    source = reads(config) if task == "writing" else None
    auto = AUTO[source] if source else auto
    if not pretrained:
        return dressed(name, getattr(_transformers(), auto).from_config(config).eval(), task, source, part)
    _check_shards(Path(name))
    if not pickles:
        _check_weights(name, config)
    return dressed(name, _model(name, part, auto, pickles=pickles), task, source, part)


def _transformers() -> Any:  # noqa: ANN401
    """The package, which is known to be there."""
    import transformers

    return transformers


def loaded_of(model: nn.Module, processor: Any) -> Loaded:  # noqa: ANN401
    """A model of transformers with the tokenizer, image processor or processor that was given beside it."""
    config, name = getattr(model, "config", None), type(model).__name__
    if config is None or not callable(processor):
        raise InputError(
            f"a pair is a model of transformers and its tokenizer or processor, but this is {name} and "
            f"{type(processor).__name__}."
        )
    task = next((task for ending, (_, task) in TASKS.items() if name.endswith(ending)), None)
    tokenizes = hasattr(processor, "tokenizer") or hasattr(processor, "convert_ids_to_tokens")
    if task in ("sequence", "question", "causal") and not tokenizes:
        raise InputError(f"{name} reads texts, but {type(processor).__name__} is no tokenizer.")
    if task is None:
        raise ModelError(f"{name} is none of the classes that have logits to explain: {', '.join(TASKS)}.")

    def part(kind: str, **options: Any) -> Any:  # noqa: ANN401
        inner = {"AutoTokenizer": "tokenizer", "AutoImageProcessor": "image_processor"}.get(kind)
        return processor if inner is None else getattr(processor, inner, processor)

    source = reads(config) if task == "writing" else None
    return dressed(name, model, task, source, part)


def dressed(name: str, model: nn.Module, task: str, source: str | None, part: Part) -> Loaded:
    """A model with what comes beside it, by its task.

    Args:
        source: what a model that writes is given.
    """
    config: Any = model.config
    if task == "image":
        return _image_model(name, model, part)
    if task == "boxes":
        return _detector(name, model, part)
    if source is not None:
        return writer(name, model, source, part)
    classes = model.get_output_embeddings().weight.shape[0] if task == "causal" else int(config.num_labels)  # pyright: ignore
    names = _label_names(config) if task == "sequence" else None
    return Loaded(model, name, "text", task, classes, names, tokenizer=part("AutoTokenizer"))


MOST_LAYERS = 2_000
"""More would take hours to build."""


def _detector(name: str, model: nn.Module, part: Part) -> Loaded:
    """A model that finds objects in images of any size."""
    from vitrail.models.loading.images import picture_of

    processor, names = part("AutoImageProcessor"), _label_names(model.config)

    def preprocess(image: Any, *, squash: bool = False) -> Sample:  # noqa: ANN401
        pixels = processor(images=image, return_tensors="pt")["pixel_values"]
        return Sample({"pixel_values": pixels}, picture_of(pixels, processor))

    return Loaded(model, name, "image", "boxes", len(names), names, preprocess=preprocess, processor=processor)


def is_cached(name: str) -> bool:
    """Return True if the model's config is in the cache of the hub."""
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except (ImportError, ValueError):
        return False


def _check_shards(folder: Path) -> None:
    """Refuse an index of weights that leads out of its folder, before any of its files is opened."""
    for index in sorted(folder.glob("*.index.json")) if folder.is_dir() else ():
        _shards(index)


def _shards(index: Path) -> list[str]:
    """Return the files that an index of weights names, all in its folder."""
    try:
        files = list(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is no index of weights: it needs weight_map, a file for each tensor.") from error
    wrong = next((file for file in files if not isinstance(file, str) or Path(file).name != file), None)
    if wrong is not None:
        raise ModelError(f"{index} names the file {wrong!r}, which does not lie in its folder.")
    return files


def _check_weights(name: str, config: Any) -> None:  # noqa: ANN401
    """Refuse pickled weights before any file of weights is opened.

    transformers is told to read safetensors only. It still reads the pickles of an adapter, of a file that the config
    names, and of an index that names them.
    """
    named = getattr(config, "transformers_weights", None)
    indexes = {SAFE_INDEX, *([named] if str(named).endswith(INDEX) else [])}
    read = [] if named is None else [named]
    for index in filter(None, (_fetch(name, file) for file in indexes)):
        read += _shards(index)
    if _fetch(name, "adapter_config.json") is not None:
        read.append("adapter_model.bin" if _fetch(name, f"adapter_model{SAFE}") is None else f"adapter_model{SAFE}")
    if not read and _fetch(name, f"model{SAFE}") is None and Path(name).is_dir():
        read += sorted(file.name for file in Path(name).iterdir() if file.suffix.lower() in PICKLES)
    for file in read:
        if not str(file).endswith((SAFE, INDEX)) or Path(file).name != file:
            raise ModelError(
                f"{name!r} could not be loaded from {_where(name)}: its weights are in {file!r}, which is no "
                "safetensors file. Pickles can run any code when they are opened, so they are refused. Convert them "
                "once where you trust them: load the model with transformers, and write it with "
                "model.save_pretrained(folder)."
            )


def _fetch(name: str, file: str) -> Path | None:
    """A file of a model, from its folder, the cache or the hub; None if there is none."""
    if Path(name).is_dir():
        found = Path(name) / file
        return found if found.exists() else None
    from transformers.utils.hub import cached_file

    quiet = {f"_raise_exceptions_for_{kind}": False for kind in ("missing_entries", "connection_errors", "gated_repo")}
    found = cached_file(name, file, **quiet)
    return None if found is None else Path(found)


def _task(name: str, config: Any) -> tuple[str, str]:  # noqa: ANN401
    given = config.architectures or []
    architectures = [str(one) for one in ([given] if isinstance(given, str) else given)]
    fitting = (found for one in architectures for ending, found in TASKS.items() if one.endswith(ending))
    for found in fitting:
        return found
    raise ModelError(
        f"{name!r} is {', '.join(architectures) or 'of no named architecture'}, but only classes that end in "
        f"{', '.join(TASKS)} have logits to explain. Fine-tune or choose one of those."
    )


def _model(name: str, part: Part, auto: str, *, pickles: bool) -> nn.Module:
    model, info = part(
        auto,
        use_safetensors=None if pickles else True,
        weights_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # told below; transformers only says that there are some
    )
    for tensor, held, needed in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"the weights of {name!r} do not fit its config: {tensor} has shape {list(held)}, but the config asks for "
            f"{list(needed)}."
        )
    if missing := sorted(info["missing_keys"]):
        # transformers would fill them with random numbers and explain those.
        raise ModelError(f"the weights of {name!r} lack {len(missing)} tensors of the model, such as {missing[0]}.")
    return model.eval()


def _label_names(config: Any) -> tuple[str, ...]:  # noqa: ANN401
    return tuple(str(config.id2label.get(i, f"LABEL_{i}")) for i in range(int(config.num_labels)))


def _image_model(name: str, model: nn.Module, part: Part) -> Loaded:
    from vitrail.models.loading.images import picture_of, within_ratio

    processor, names = part("AutoImageProcessor"), _label_names(model.config)
    size = _size(name, model.config, processor)
    _check_result(name, processor)

    def preprocess(image: Any, *, squash: bool = False) -> Sample:  # noqa: ANN401
        given: dict[str, Any] = {}
        if squash:
            image, given = image.resize((size[1], size[0])), {"do_resize": False, "do_center_crop": False}
        pixels = _processed(name, processor, within_ratio(image), given)
        return Sample({"pixel_values": pixels}, picture_of(pixels, processor))

    return Loaded(
        model, name, "image", "image", len(names), names, preprocess=preprocess, image_size=size, processor=processor
    )


def _size(name: str, config: Any, processor: Any) -> tuple[int, int]:  # noqa: ANN401
    """Height and width of what the model sees."""
    side = getattr(config, "image_size", None)
    if isinstance(side, int):
        return side, side
    if side is not None:
        return int(side[0]), int(side[1])
    given: Any = getattr(processor, "crop_size", None) or getattr(processor, "size", None) or {}
    if "height" not in given or "width" not in given:
        raise ModelError(f"neither the config nor the image processor of {name!r} says how large its images are.")
    return int(given["height"]), int(given["width"])


def _check_result(name: str, processor: Any) -> None:  # noqa: ANN401
    """Refuse a processor whose pictures would have no pixels or would fill the memory, by the sizes it names."""
    for what in ("size", "crop_size"):
        given: Any = getattr(processor, what, None)
        if not given or not getattr(processor, "do_resize" if what == "size" else "do_center_crop", True):
            continue
        sides = [given.get(side) for side in ("height", "width", "shortest_edge", "longest_edge")]
        named = [side for side in sides if side is not None]
        if any(not 0 < side <= LONGEST_SIDE for side in named):
            raise ModelError(
                f"the image processor of {name!r} gives pictures a {what} of {dict(given)}; sides have 1 to "
                f"{LONGEST_SIDE:,} pixels."
            )


LONGEST_SIDE = 8_192


def _processed(name: str, processor: Any, image: Any, given: dict[str, Any]) -> torch.Tensor:  # noqa: ANN401
    """The pixels that a processor makes of a picture, or what it says."""
    try:
        pixels = processor(images=image, return_tensors="pt", **given)["pixel_values"]
    except Exception as error:  # processors check little, and fail in many ways
        raise ModelError(
            f"the image processor of {name!r} failed: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not isinstance(pixels, torch.Tensor) or pixels.ndim != 4:
        shape = list(getattr(pixels, "shape", ()))
        raise ModelError(f"the image processor of {name!r} gives pixels of shape {shape}, not [b, channels, h, w].")
    return pixels


LONGEST_ANSWER = 48
"""Tokens that are written at most."""
SOUND_KINDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""What the bytes of one number of a sound are read as."""
GENERATION = {"do_sample": False, "num_beams": 1, "max_new_tokens": LONGEST_ANSWER}


def answer_ids(sample: Sample) -> list[int]:
    """The tokens that a model wrote."""
    inputs: Any = sample.inputs
    return inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"][0, sample.start :].tolist()


def answer_text(loaded: Loaded, sample: Sample) -> str:
    """Return the text that a model wrote."""
    return loaded.tokenizer.decode(answer_ids(sample), skip_special_tokens=True).strip()


def answer_words(loaded: Loaded, sample: Sample) -> list[tuple[str, Span]]:
    """The words of an answer with their columns, special tokens at its ends left out."""
    ids, start = answer_ids(sample), sample.start or 0
    special = set(loaded.tokenizer.all_special_ids)
    plain = [place for place, one in enumerate(ids) if one not in special]
    if not plain:
        return []
    first, ids = plain[0], ids[plain[0] : plain[-1] + 1]
    found = words(pieces_of(loaded.tokenizer.convert_ids_to_tokens(ids)))
    return [(loaded.tokenizer.decode(ids[a:b]).strip(), (start + first + a, start + first + b)) for a, b in found]


def reads(config: Any) -> str:  # noqa: ANN401
    """Return the input of a model that writes text: `text`, `sound`, `picture`, or `question` with a picture."""
    if getattr(config, "vision_config", None) is not None:
        return "question"
    kind = getattr(getattr(config, "encoder", None), "model_type", config.model_type)
    if kind in PICTURES:
        return "picture"
    return "sound" if kind in SOUNDS else "text"


PICTURES = frozenset({"vit", "deit", "beit", "swin", "donut-swin", "dinov2"})
SOUNDS = frozenset({"whisper", "speech_to_text", "wav2vec2", "hubert", "wavlm", "moonshine"})
AUTO = {
    "text": "AutoModelForSeq2SeqLM",
    "sound": "AutoModelForSpeechSeq2Seq",
    "picture": "AutoModelForImageTextToText",
    "question": "AutoModelForImageTextToText",
}
"""The class of transformers that loads a model, by what it is given."""


def writer(name: str, model: nn.Module, source: str, part: Part) -> Loaded:
    """A model that writes, ready to be given its source (`reads`)."""
    tokenizer, (kind, write) = part("AutoTokenizer"), WRITERS[source]
    count = int(getattr(model.get_output_embeddings(), "weight", torch.zeros(len(tokenizer))).shape[0])  # pyright: ignore
    write = partial(write, model, tokenizer if kind == "AutoTokenizer" else part(kind))
    reading = "image" if source == "picture" else "text"
    return Loaded(model, name, reading, "writing", count, tokenizer=tokenizer, write=write, source=source)


def _decoded(model: Any, inputs: Any) -> Sample:  # noqa: ANN401
    """The inputs of an encoder-decoder model with what it writes for them."""
    with torch.no_grad():
        inputs["decoder_input_ids"] = model.generate(**inputs, **GENERATION)
    return Sample(inputs, start=1)


def _translate(model: Any, tokenizer: Any, text: str) -> Sample:  # noqa: ANN401
    return _decoded(model, tokenizer(check_text(text), return_tensors="pt").to(model.device))


def _transcribe(model: Any, extractor: Any, path: Path) -> Sample:  # noqa: ANN401
    rate = int(extractor.sampling_rate)
    sound = resampled(*read_wave(path), rate)
    found = extractor(sound.numpy(), sampling_rate=rate, return_tensors="pt")
    name = next(n for n in ("input_features", "input_values") if n in found)
    values = found[name].to(model.device, model.dtype)
    whole = getattr(extractor, "n_samples", None) if name == "input_features" else None
    seconds = (whole or len(sound)) / rate  # Whisper's sounds are filled up to thirty seconds
    return replace(_decoded(model, {name: values}), sound=Sound(sound, rate, seconds))


def _describe(model: Any, processor: Any, image: Any) -> Sample:  # noqa: ANN401
    pixels = processor(images=image, return_tensors="pt")["pixel_values"].to(model.device, model.dtype)
    return replace(_decoded(model, {"pixel_values": pixels}), picture=_shown(image, pixels, processor))


def _answer(model: Any, processor: Any, image: Any, question: str, *, length: int = LONGEST_ANSWER) -> Sample:  # noqa: ANN401
    text = f"{getattr(processor, 'image_token', '<image>')} {question}"
    if getattr(processor, "chat_template", None):  # the question as the model was trained to be asked
        content = [{"type": "image"}, {"type": "text", "text": question}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    found = processor(images=image, text=text, return_tensors="pt")
    inputs = {n: x.to(model.device, model.dtype if x.is_floating_point() else None) for n, x in found.items()}
    with torch.no_grad():
        written = model.generate(**inputs, **{**GENERATION, "max_new_tokens": length})
    start = inputs["input_ids"].shape[1]
    more = written.shape[1] - start
    for mask, value in (("attention_mask", 1), ("token_type_ids", 0), ("mm_token_type_ids", 0)):
        if mask in inputs:
            inputs[mask] = F.pad(inputs[mask], (0, more), value=value)
    inputs["input_ids"] = written
    return Sample(inputs, _shown(image, inputs.get("pixel_values"), processor.image_processor), start=start)


def _shown(image: Any, pixels: Tensor | None, processor: Any) -> Any:  # noqa: ANN401
    """The picture that maps are drawn over: what the model saw, or None where it saw tiles.

    Patches of a whole picture that stand in one row come from no crop, so the picture itself is shown.
    """
    from vitrail.models.loading.images import picture_of

    if pixels is not None and pixels.ndim == 4 and len(pixels) == 1:
        return picture_of(pixels.cpu(), processor)
    return image if pixels is not None and pixels.ndim == 2 else None


WRITERS: dict[str, tuple[str, Callable[..., Sample]]] = {
    "text": ("AutoTokenizer", _translate),
    "sound": ("AutoFeatureExtractor", _transcribe),
    "picture": ("AutoImageProcessor", _describe),
    "question": ("AutoProcessor", _answer),
}
"""By what a model is given: what prepares it, and the function that writes from the model, that and the source."""


def read_wave(path: Path) -> tuple[Tensor, int]:
    """The numbers of a .wav file, its channels averaged, between -1 and 1; and how many there are in a second."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read as a .wav file of plain numbers (PCM): {reason}.") from error
    if width not in SOUND_KINDS or not data:
        raise InputError(f"{path} holds {len(data)} bytes of {8 * width} bits; 8, 16 or 32 bits can be read.")
    numbers = torch.frombuffer(bytearray(data), dtype=SOUND_KINDS[width]).float()
    numbers = (numbers - 128) / 128 if width == 1 else numbers / 2.0 ** (8 * width - 1)
    return numbers.view(-1, channels).mean(dim=1), rate


def resampled(sound: Tensor, rate: int, wanted: int) -> Tensor:
    """The sound with another number of samples in a second, on straight lines between the old ones."""
    if rate == wanted:
        return sound
    count = max(1, round(len(sound) * wanted / rate))
    return F.interpolate(sound[None, None], size=count, mode="linear", align_corners=False)[0, 0]
