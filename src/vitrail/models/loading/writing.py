"""Models that write text about a source: translations of a text, transcripts of a sound, answers about a picture."""

import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.models.loading.loaded import Loaded, Sample, Sound
from vitrail.models.texts import Span, check_text, pieces_of, words

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
    """What a model wrote."""
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
    """What a model that writes text is given: `text`, `sound`, `picture`, or `question` for a picture and a text."""
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


def writer(name: str, model: nn.Module, source: str, parts: Callable[[str], Any]) -> Loaded:
    """A model that writes, ready to be given its source.

    Args:
        source: what it is given (`reads`).
        parts: fetches a part that comes with the model by the name of its class in transformers.
    """
    tokenizer = parts("AutoTokenizer")
    write = WRITERS[source](model, tokenizer, parts)
    count = int(getattr(model.get_output_embeddings(), "weight", torch.zeros(len(tokenizer))).shape[0])  # pyright: ignore
    kind = "image" if source == "picture" else "text"
    return Loaded(model, name, kind, "writing", count, tokenizer=tokenizer, write=write, source=source)


def _decoded(model: Any, inputs: Any) -> Sample:  # noqa: ANN401
    """The inputs of an encoder-decoder model with what it writes for them."""
    with torch.no_grad():
        written = model.generate(**inputs, **GENERATION)
    inputs["decoder_input_ids"] = written
    return Sample(inputs, start=1)


def _translation(model: Any, tokenizer: Any, parts: Callable[[str], Any]) -> Callable[..., Sample]:  # noqa: ANN401
    def write(text: str) -> Sample:
        return _decoded(model, tokenizer(check_text(text), return_tensors="pt").to(model.device))

    return write


def _transcript(model: Any, tokenizer: Any, parts: Callable[[str], Any]) -> Callable[..., Sample]:  # noqa: ANN401
    extractor = parts("AutoFeatureExtractor")
    rate = int(extractor.sampling_rate)

    def write(path: Path) -> Sample:
        sound = resampled(*read_wave(path), rate)
        found = extractor(sound.numpy(), sampling_rate=rate, return_tensors="pt")
        name = next(n for n in ("input_features", "input_values") if n in found)
        values = found[name].to(model.device, model.dtype)
        whole = getattr(extractor, "n_samples", None) if name == "input_features" else None
        seconds = (whole or len(sound)) / rate  # Whisper's sounds are filled up to thirty seconds
        return replace(_decoded(model, {name: values}), sound=Sound(sound, rate, seconds))

    return write


def _caption(model: Any, tokenizer: Any, parts: Callable[[str], Any]) -> Callable[..., Sample]:  # noqa: ANN401
    processor = parts("AutoImageProcessor")

    def write(image: Any) -> Sample:  # noqa: ANN401
        pixels = processor(images=image, return_tensors="pt")["pixel_values"].to(model.device, model.dtype)
        return replace(_decoded(model, {"pixel_values": pixels}), picture=_shown(image, pixels, processor))

    return write


def _answer(model: Any, tokenizer: Any, parts: Callable[[str], Any]) -> Callable[..., Sample]:  # noqa: ANN401
    processor = parts("AutoProcessor")

    def write(image: Any, question: str, *, length: int = LONGEST_ANSWER) -> Sample:  # noqa: ANN401
        found = processor(images=image, text=_prompt(processor, question), return_tensors="pt")
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

    return write


def _prompt(processor: Any, question: str) -> str:  # noqa: ANN401
    """The question as the model was trained to be asked."""
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}, {"type": "text", "text": question}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return f"{getattr(processor, 'image_token', '<image>')} {question}"


def _shown(image: Any, pixels: Tensor | None, processor: Any) -> Any:  # noqa: ANN401
    """The picture that maps are drawn over: what the model saw, or None where it saw tiles.

    Patches of a whole picture that stand in one row come from no crop, so the picture itself is shown.
    """
    from vitrail.models.loading.images import picture_of

    if pixels is not None and pixels.ndim == 4 and len(pixels) == 1:
        return picture_of(pixels.cpu(), processor)
    return image if pixels is not None and pixels.ndim == 2 else None


WRITERS: dict[str, Callable[..., Callable[..., Sample]]] = {
    "text": _translation,
    "sound": _transcript,
    "picture": _caption,
    "question": _answer,
}


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
