from dataclasses import replace

import pytest
import torch
from saved_models import ARCH, save_bert, save_gpt2, save_question_bert, save_timm, save_vit
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from vitrail.models.loading import load
from vitrail.tools import doctor
from vitrail.tools.doctor import examine


class Encoder(nn.Module):
    """Frozen, with nn.MultiheadAttention inside: the model that has a native path of its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 12)
        layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True, dropout=0.3)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(12, 5)
        self.requires_grad_(requires_grad=False)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids))[:, 0])


@pytest.mark.parametrize("save", [save_bert, save_question_bert, save_gpt2, save_vit])
def test_every_kind_of_saved_model_passes(tmp_path, save):
    loaded = load(str(save(tmp_path / "model")))
    report = examine(loaded.model, loaded.example().inputs)
    assert report.passed
    assert [row.index for row in report.rows] == [0, 1]
    assert {(row.heads, row.key_value_heads, row.head_width) for row in report.rows} == {(3, 3, 4)}


def test_the_report_says_what_was_found(tmp_path):
    loaded = load(str(save_timm(tmp_path)), arch=ARCH)
    report = examine(loaded.model, loaded.example().inputs)
    assert (report.family, report.grid, report.prefix, report.readout) == ("timm VisionTransformer", (10, 10), 1, "cls")
    assert {row.seam for row in report.rows} == {"fused"}


def test_hand_written_attention_is_named_so(tmp_path):
    loaded = load(str(save_bert(tmp_path / "bert")))
    loaded.model.set_attn_implementation("eager")
    report = examine(loaded.model, loaded.example().inputs)
    assert report.passed
    assert {row.seam for row in report.rows} == {"hand-written"}


def test_shared_key_and_value_heads_are_counted():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=11, num_hidden_layers=3, max_position_embeddings=9, **sizes))
    report = examine(model, torch.arange(6)[None])
    assert report.passed
    assert {(row.heads, row.key_value_heads) for row in report.rows} == {(4, 2)}


def test_a_frozen_encoder_in_training_passes_and_keeps_its_mode():
    model = Encoder()
    assert examine(model, torch.arange(6)[None]).passed
    assert model.training


def test_float64_is_held_to_its_own_tolerance(tmp_path):
    loaded = load(str(save_vit(tmp_path / "vit")))
    loaded.model.double()
    report = examine(loaded.model, loaded.example().inputs)
    assert report.passed
    assert report.rows[0].tolerance == 1e-12


def test_a_wrong_recording_fails(tmp_path, monkeypatch):
    loaded = load(str(save_vit(tmp_path / "vit")))
    honest = doctor.record

    def with_wrong_scale(*args, **kwargs):
        found = honest(*args, **kwargs)
        first, *rest = found.layers
        query = first.query + 3
        return replace(found, layers=(replace(first, query=query, scale=7.0), *rest), logits=found.logits + 1e-3)

    monkeypatch.setattr(doctor, "record", with_wrong_scale)
    report = examine(loaded.model, loaded.example().inputs)
    assert [row.passed for row in report.rows] == [False, True]
    assert not report.same_logits
    assert not report.passed


def test_only_real_queries_are_compared(tmp_path, monkeypatch):
    loaded = load(str(save_bert(tmp_path / "bert")))
    inputs = loaded.example().inputs
    padding = ~inputs["attention_mask"].bool()[:, None, :, None]
    assert bool(padding.any())
    honest = doctor.record
    for broken, expected in ((padding, True), (~padding, False)):

        def spoil(*args, broken=broken, **kwargs):
            found = honest(*args, **kwargs)
            return replace(found, layers=tuple(replace(x, output=x.output + 1.0 * broken) for x in found.layers))

        monkeypatch.setattr(doctor, "record", spoil)
        assert examine(loaded.model, inputs).passed is expected


def test_the_structure_is_a_table_in_notebooks_and_text_elsewhere():
    loaded = load("photo")
    found = doctor.structure(loaded.model, loaded.example().inputs)
    page = found._repr_html_()
    assert page.count("<tr>") == 1 + len(found.blocks)
    for line in (str(found).splitlines()[0], "tokens: ", str(found.blocks[0].name), "ffn_input"):
        assert line in page
    assert str(found).count("\n  ") == len(found.blocks)
