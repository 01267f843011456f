"""Models that write text or find objects on the command line."""

import math
import struct
import wave

import pytest
import torch
import transformers
from PIL import Image
from stream_models import CLIP_VISION, MODEL, SEQ2SEQ, T5, WORDS, detr
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from typer.testing import CliRunner

import vitrail
from vitrail.apps.cli.app import app

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def tokenizer(folder):
    vocabulary = [*SPECIAL, *(f"w{i}" for i in range(4, WORDS - 1)), "<image>"]
    found = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    found.pre_tokenizer = Whitespace()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=found, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=["<image>"],
    )  # fmt: skip
    made.save_pretrained(folder)
    return made


def saved(folder, model):
    torch.manual_seed(0)
    model = model()
    model.generation_config.max_length = None
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def translator(tmp_path):
    tokenizer(tmp_path / "t5")
    return saved(tmp_path / "t5", lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)))


@pytest.fixture
def whisper(tmp_path):
    folder = tmp_path / "whisper"
    tokenizer(folder)
    transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1, sampling_rate=8000).save_pretrained(folder)
    sizes = {k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"}
    config = transformers.WhisperConfig(**sizes, num_mel_bins=8, max_source_positions=25, max_target_positions=64)
    return saved(folder, lambda: transformers.WhisperForConditionalGeneration(config))


@pytest.fixture
def llava(tmp_path):
    folder = tmp_path / "llava"
    words = tokenizer(folder)
    pictures = transformers.CLIPImageProcessor(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    transformers.LlavaProcessor(
        image_processor=pictures, tokenizer=words, patch_size=6, vision_feature_select_strategy="default",
        image_token="<image>", num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    config = transformers.LlavaConfig(vision_config=CLIP_VISION, text_config=MODEL, image_token_index=WORDS - 1)
    return saved(folder, lambda: transformers.LlavaForConditionalGeneration(config))


def ran(*arguments):
    found = CliRunner().invoke(app, ["explain", *map(str, arguments)])
    assert found.exit_code == 0, found.output
    return found.output


def test_a_translation_is_explained_over_its_source(translator, tmp_path):
    path = tmp_path / "found.json"
    said = ran("w5 w9 w7", "-m", translator, "-o", path)
    assert "answer" in said
    found = vitrail.Attribution.load(path)
    assert found.streams["encoder"].tokens == (("w5", "w9", "w7"),)
    assert found.streams["decoder"].tokens[0][0] == "<pad>"
    assert found.target.name == "continuation"
    assert ran("w5 w9 w7", "-m", translator, "-o", tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 3000


def test_a_sound_is_shaded_over_time(whisper, tmp_path):
    sound = tmp_path / "speech.wav"
    with wave.open(str(sound), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(4000)
        values = [int(9000 * math.sin(i / 9)) for i in range(3000)]
        file.writeframes(b"".join(struct.pack("<hh", x, x) for x in values))
    path = tmp_path / "found.npz"
    ran(sound, "-m", whisper, "-o", path)
    assert vitrail.Attribution.load(path).streams["encoder"].scores.shape == (1, 50)  # frames, two for each token
    ran(sound, "-m", whisper, "--method", "gae", "-o", path)
    assert vitrail.Attribution.load(path).streams["encoder"].scores.shape == (1, 25)
    ran(sound, "-m", whisper, "--target", "all", "-o", tmp_path / "words.html")
    assert (tmp_path / "words.html").read_text().count("<section") > 1
    ran(sound, "-m", whisper, "-o", tmp_path / "wave.png")
    sound.write_bytes(b"no sound")
    assert (
        "cannot be read as a .wav file" in CliRunner().invoke(app, ["explain", str(sound), "-m", str(whisper)]).output
    )


def test_a_question_about_a_picture_has_a_map_and_a_shaded_prompt(llava, tmp_path):
    photo = tmp_path / "photo.png"
    Image.new("RGB", (40, 30), (200, 30, 30)).save(photo)
    path = tmp_path / "found.json"
    ran(photo, "--question", "w5 w6 w7", "-m", llava, "-o", path)
    found = vitrail.Attribution.load(path)
    assert found.streams["image"].grid == (4, 4)
    assert found.streams["text"].tokens[0][-1].startswith(("w", "<"))
    said = ran(photo, "--question", "w5 w6 w7", "-m", llava, "-o", tmp_path / "sheet.png")
    assert "<image> ×16" in said  # the places of the patches are one line
    assert "level=" not in said  # each stream has its own
    missing = CliRunner().invoke(app, ["explain", str(photo), "-m", str(llava)])
    assert missing.exit_code != 0
    assert "give --question TEXT" in " ".join(missing.output.split())


def test_an_object_has_a_map_with_its_box(tmp_path):
    folder, photo = tmp_path / "detr", tmp_path / "photo.png"
    transformers.DetrImageProcessor(size={"shortest_edge": 48, "longest_edge": 64}).save_pretrained(folder)
    torch.manual_seed(0)
    detr(
        "DetrForObjectDetection", num_labels=2, id2label={0: "cat", 1: "car"}, label2id={"cat": 0, "car": 1}
    )().save_pretrained(folder)
    Image.linear_gradient("L").convert("RGB").resize((64, 48)).save(photo)
    said = ran(photo, "-m", folder, "--target", "car", "-o", tmp_path / "car.json")
    assert "car, query" in said
    found = vitrail.Attribution.load(tmp_path / "car.json")
    assert (found.kind, found.method) == ("image", "attn_lrp")
    assert found.target.first == (1,) or found.target.first == 1
    ran(photo, "-m", folder, "-o", tmp_path / "found.png")
    assert (tmp_path / "found.png").stat().st_size > 3000
