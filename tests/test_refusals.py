"""Inputs and targets that have no right answer are refused, with words that help."""

import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_bert
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import AnatomyError, InputError, OptionError, SeamError, TargetError
from vitrail.models.inputs import read_inputs
from vitrail.models.loading import load
from vitrail.models.loading.images import open_image, to_rgb
from vitrail.models.texts import is_blank
from vitrail.plots.pictures import as_picture


def explain(name, target=None, method="gae", **changed):
    inputs = MODELS[name].inputs()
    return vitrail.explain(tiny(name), {**inputs, **changed} if changed else inputs, method, target)


@pytest.mark.parametrize(
    "target",
    [
        True,
        False,
        np.True_,
        np.array([True, False]),
        torch.tensor(1) > 0,
        torch.tensor([True, False]),
        [True, False],
        [1, True],
        (np.True_, 0),
        [torch.tensor(1) > 0, 1],
    ],
    ids=repr,
)
def test_a_truth_value_is_no_class(target):
    with pytest.raises(TargetError, match="whole number"):
        targets.as_target(target)


def test_explain_takes_no_truth_value():
    with pytest.raises(TargetError, match="whole number, or one for each sample, but True was given"):
        explain("hf_bert", target=True)


@pytest.mark.parametrize("make", [targets.logit, targets.probability, targets.next_token])
def test_no_target_object_takes_a_truth_value(make):
    with pytest.raises(TargetError, match="whole number"):
        make(*[True])


def test_a_position_is_a_whole_number():
    with pytest.raises(TargetError, match="position is the whole number of a token, but True was given"):
        targets.logit(1, position=True)


@pytest.mark.parametrize("target", [np.int64(1), torch.tensor(1), [np.int32(1), torch.tensor(0)], np.array([1, 0])])
def test_whole_numbers_of_every_library_are_classes(target):
    assert len(explain("hf_bert", target)) == 2


@pytest.mark.parametrize("name", ["hf_vit", "hf_bert"])
@pytest.mark.parametrize("method", ["gae", "tokentm", "rollout"])
def test_a_classifier_has_no_next_token(name, method):
    """TokenTM explains the probability: what it asks for is still a next token."""
    with pytest.raises(TargetError, match=r"predicts no next token\. Name a class"):
        explain(name, targets.next_token(1), method)


def test_a_method_of_probabilities_still_knows_a_next_token():
    found = explain("hf_gpt2", targets.next_token(7), "tokentm")
    assert str(found.target) == "next token probability of 7"
    assert torch.equal(found.scores, explain("hf_gpt2", 7, "tokentm").scores)


MASK = torch.ones(2, 9, dtype=torch.int64)


def with_value(value, dtype):
    mask = MASK.to(dtype).clone()
    mask[1, -1] = value
    return mask


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (torch.nan, torch.float32, "1 NaN of 18"),
        (-1, torch.int64, "holds -1"),
        (2, torch.int64, "holds 2"),
        (0.5, torch.float64, "holds 0.5"),
        (-torch.inf, torch.float32, "holds -inf"),
        (torch.finfo(torch.float32).min, torch.float32, "added to the attention scores has four axes"),
        (torch.nan, torch.float16, "NaN"),
    ],
)
def test_a_mask_of_two_axes_holds_zeros_and_ones(value, dtype, words):
    with pytest.raises(InputError, match=words):
        explain("hf_bert", attention_mask=with_value(value, dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64])
def test_zeros_and_ones_are_a_mask_in_every_dtype(dtype):
    read = read_inputs({"input_ids": MASK, "attention_mask": with_value(0, dtype)})
    assert read.attention_mask is not None


def test_a_mask_of_more_axes_may_hold_what_is_added_but_no_nan():
    added = torch.zeros(2, 1, 9, 9).masked_fill(torch.ones(9, 9).triu(1) > 0, -torch.inf)
    assert read_inputs({"input_ids": MASK, "attention_mask": added}).attention_mask is None
    added[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="attention_mask holds 1 NaN of 162"):
        read_inputs({"input_ids": MASK, "attention_mask": added})


def test_a_mask_of_ones_own_model_may_hold_minus_infinity():
    padding = torch.zeros(2, 9).masked_fill(torch.arange(9) > 5, -torch.inf)
    assert read_inputs({"x": torch.randn(2, 9, 4), "src_key_padding_mask": padding}).batch == 2


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return load(str(save_bert(tmp_path_factory.mktemp("bert"))))


INVISIBLE = ["\u200b", "\u200b\u200d\ufeff", " \u2060\u00ad ", "\u200e\n\u200f", "\x00\x07"]


@pytest.mark.parametrize("text", INVISIBLE, ids=ascii)
def test_a_text_of_invisible_characters_is_empty(bert, text):
    assert is_blank(text)
    with pytest.raises(InputError, match="empty"):
        bert.text(text)
    with pytest.raises(InputError, match="empty"):
        bert.text("a film", text)


@pytest.mark.parametrize("text", ["a", "\u200ba", "你", "🙂", "-", "١"])
def test_a_text_of_one_visible_character_is_not_empty(text):
    assert not is_blank(text)


@pytest.mark.parametrize("more", [{}, {"return_special_tokens_mask": True}], ids=["plain", "with special tokens"])
@pytest.mark.parametrize("text", [*INVISIBLE, "", "\u0301"], ids=ascii)
def test_special_tokens_alone_are_not_explained(bert, text, more):
    """What reaches the border as token ids is known by the tokens: here [CLS] [SEP] and padding."""
    inputs = bert.tokenizer(["a dull film", text], padding=True, return_tensors="pt", **more)
    with pytest.raises(InputError, match="text 1 of the batch has no token of its own"):
        vitrail.explain(bert.model, inputs, "gae")


def test_a_word_the_tokenizer_does_not_know_is_content(bert):
    inputs = bert.tokenizer("zyzzyva", return_tensors="pt")
    assert vitrail.explain(bert.model, inputs, "gae").scores.shape == (1, 3)


SHAPES = [
    ({"pixel_values": torch.randn(3, 8, 8)}, "one picture: is the batch axis missing"),
    ({"pixel_values": torch.randn(8, 8)}, "one picture: is the batch axis missing"),
    (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "pictures in whole numbers: run the model's own preprocessing"),
    (torch.zeros(3, 8, 8, dtype=torch.uint8), "one picture in whole numbers"),
    (torch.tensor([1, 2, 3]), "token ids of one text: is the batch axis missing"),
    (torch.randn(7), "one example of audio or of a table"),
    (torch.tensor(3), "what is explained is a batch of images"),
]


@pytest.mark.parametrize(("inputs", "words"), SHAPES, ids=[words for _, words in SHAPES])
def test_a_shape_that_is_not_supported_is_called_by_its_name(inputs, words):
    with pytest.raises(InputError, match=words):
        read_inputs(inputs)


SIGNALS = [torch.randn(2, 400), torch.randn(2, 4, 3, 8, 8), {"input_values": torch.randn(1, 400)},
           {"input_features": torch.randn(1, 8, 20)}, {"pixel_values": torch.randn(2, 4, 3, 8, 8)}]  # fmt: skip


@pytest.mark.parametrize("inputs", SIGNALS, ids=lambda x: "named" if isinstance(x, dict) else "tensor")
def test_audio_tables_spectra_and_video_are_signals(inputs):
    read = read_inputs(inputs)
    assert read.signal
    assert read.ids is None


def test_a_table_read_by_no_attention_is_refused():
    with pytest.raises(SeamError, match="no attention was seen"):
        vitrail.explain(nn.Linear(5, 2), torch.randn(3, 5))


GREY = np.linspace(0, 255, 12 * 7).reshape(7, 12).round()


def saved(path, array, **more):
    Image.fromarray(array).save(path, **more)
    return path


@pytest.mark.parametrize(
    "array",
    [
        (GREY * 1e6).astype(np.int32),
        (GREY * 257).astype(np.int32),
        GREY.astype(np.int32),
        -GREY.astype(np.int32),
        np.zeros((7, 12), dtype=np.int32),
    ],
    ids=["large", "as 16 bits", "as 8 bits", "negative", "zeros"],
)
def test_32_bit_integers_have_no_white(tmp_path, array):
    with pytest.raises(
        InputError, match=r"x\.tif: the picture holds 32-bit integers from .* Save it with 8 or 16 bits"
    ):
        open_image(saved(tmp_path / "x.tif", array))


@pytest.mark.parametrize(
    "array",
    [GREY, GREY / 254, -GREY / 255, np.where(GREY > 9, np.nan, 0), np.full((7, 12), np.inf)],
    ids=["0 to 255", "above one", "negative", "NaN", "infinite"],
)
def test_real_numbers_run_from_zero_to_one(tmp_path, array):
    with pytest.raises(InputError, match=r"real numbers from .* only those from 0 \(black\) to 1 \(white\)"):
        open_image(saved(tmp_path / "x.tif", array.astype(np.float32)))


@pytest.mark.parametrize(
    ("array", "name"),
    [
        ((GREY * 257).astype(np.uint16), "x.tif"),
        ((GREY * 257).astype(np.uint16), "x.png"),
        ((GREY / 255).astype(np.float32), "x.tif"),
    ],
)
def test_a_range_that_is_defined_is_scaled(tmp_path, array, name):
    assert np.abs(np.asarray(open_image(saved(tmp_path / name, array)))[..., 0] - GREY).max() <= 1


def test_a_png_that_pillow_hands_over_as_32_bits_has_16():
    """Versions of Pillow before 11 do so."""
    image = Image.fromarray((GREY * 257).astype(np.int32))
    image.format = "PNG"
    assert np.abs(np.asarray(to_rgb(image))[..., 0] - GREY).max() <= 1


def test_a_deep_picture_is_drawn_in_all_its_greys():
    drawn = as_picture(Image.fromarray((GREY * 1000).astype(np.int32)))
    np.testing.assert_allclose(drawn[..., 0], GREY / 255, atol=1e-9)


def test_a_mask_is_as_long_as_its_text():
    given = {"input_ids": torch.tensor([[5, 9, 33, 21]]), "attention_mask": torch.ones(1, 3)}
    with pytest.raises(InputError, match=r"\(1, 3\), but the text has 1 x 4 tokens"):
        vitrail.explain(tiny("hf_bert"), given, "gae", 1)


@pytest.mark.parametrize("rows", [True, 0, -1])
def test_rows_of_a_block_are_a_whole_number(rows):
    with pytest.raises(OptionError, match="whole number of rows"):
        vitrail.explain(tiny("hf_bert"), {"input_ids": torch.tensor([[5, 9]])}, "gae", 1, chunk_rows=rows)


def test_inputs_without_values_are_refused():
    with pytest.raises(InputError, match="meta device"):
        vitrail.explain(tiny("hf_bert"), {"input_ids": torch.tensor([[5, 9]], device="meta")}, "gae", 1)


class KeepingBlock(torch.nn.Module):
    """A block that keeps what it was given, with its graph, and may count how often it ran."""

    def __init__(self, *, counts):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.counts, self.times, self.given = counts, 0, None

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        self.given, self.times = x, self.times + self.counts
        self.map = torch.softmax(q @ k.mT / 8**0.5, dim=-1)
        return x + (1 + self.times) * self.out((self.map @ v).transpose(1, 2).flatten(2))


class Repeating(torch.nn.Module):
    """One block that runs three times."""

    def __init__(self, *, counts=0):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 3)
        self.blocks = torch.nn.ModuleList([KeepingBlock(counts=counts)])

    def forward(self, input_ids):
        self.blocks[0].times = 0
        x, self.maps = self.words(input_ids), []
        for _ in range(3):
            x = self.blocks[0](x)
            self.maps.append(self.blocks[0].map)
        return self.head(x.mean(dim=1))


def test_a_block_that_runs_three_times_and_keeps_graph_tensors_is_walked_three_times():
    torch.manual_seed(0)
    model, ids = Repeating().double().eval(), torch.randint(3, 40, (2, 7))
    grads = torch.autograd.grad(model(ids)[:, 1].sum(), model.maps)
    row = torch.full((2, 1, 7), 1 / 7, dtype=torch.float64)
    for a, g in reversed([*zip(model.maps, grads, strict=True)]):
        row = row + row @ (a * g).clamp(min=0).mean(dim=1)
    assert_close(vitrail.explain(model, {"input_ids": ids}, "gae", 1).scores, row[:, 0].detach())
    assert_close(vitrail.explain(model, {"input_ids": ids}, "gae", 1).scores, row[:, 0].detach())


def test_a_block_that_works_differently_each_time_is_refused():
    model = Repeating(counts=1).double().eval()
    with pytest.raises(AnatomyError, match="keeps something from one time to the next"):
        vitrail.explain(model, {"input_ids": torch.randint(3, 40, (2, 7))}, "gae", 1)
