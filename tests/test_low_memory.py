"""Blocks that are run again for the backward pass, and logits at the rows that are read alone."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from golden2_sets import golden2
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.capture.recording import forward as passes
from vitrail.capture.recording import recompute
from vitrail.capture.recording.recompute import Recomputed, blocks_to_drop
from vitrail.errors import OptionError, SeamError

transformers = pytest.importorskip("transformers")
CAUSAL = ("hf_llama", "hf_gpt2")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(12), nn.Linear(12, 36)

    def forward(self, x):
        q, k, v = (y[:, None] for y in self.mix(self.norm(x)).chunk(3, dim=-1))
        return x + F.scaled_dot_product_attention(q, k, v)[:, 0]


class Own(nn.Module):
    """Blocks one after the other, with whatever else a test adds."""

    def __init__(self, block=Block):
        super().__init__()
        self.table, self.layers = nn.Embedding(20, 12), nn.ModuleList([block() for _ in range(3)])
        self.head = nn.Linear(12, 5)

    def forward(self, input_ids):
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class Skipping(Own):
    def forward(self, input_ids):
        x, kept = self.table(input_ids), []
        for layer in self.layers:
            x = layer(x)
            kept.append(x)
        return self.head((x + kept[0]).mean(dim=1))


class Between(Own):
    def forward(self, input_ids):
        x, kept = self.table(input_ids), []
        for index, layer in enumerate(self.layers):
            x = layer(x if index < 2 else x + kept[0])
            kept.append(x)
        return self.head(x.mean(dim=1))


class Counting(Block):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)


class InPlace(Block):
    def forward(self, x):
        with torch.no_grad():
            x.mul_(0.5)
        return super().forward(x)


IDS = {"input_ids": torch.randint(20, (2, 7), generator=torch.Generator().manual_seed(0))}
WHERE = vitrail.Anatomy(blocks="layers")


@pytest.mark.parametrize("name", [*CAUSAL, "hf_vit", "timm_siglip", "own_time_first"])
def test_blocks_that_are_run_again_give_the_same_scores(name):
    model, inputs, methods = tiny(name), MODELS[name].inputs(), ["gae", "tokentm", "attcat"]
    target = targets.continuation(5) if name in CAUSAL else 1
    expected = vitrail.compare(model, inputs, methods, target, memory="full")
    for one, whole in zip(vitrail.compare(model, inputs, methods, target, memory="low"), expected, strict=True):
        assert_close(one.scores, whole.scores, atol=1e-12, rtol=1e-9)
        assert one.provenance["recomputed_blocks"] == len(model_blocks(model))
        assert "recomputed_blocks" not in whole.provenance


def model_blocks(model):
    return next(m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m) in (2, 3))


@pytest.mark.parametrize("border", [1, 2, 3])
def test_some_blocks_are_run_again_and_others_not(border, monkeypatch):
    monkeypatch.setattr(passes, "recomputed", lambda depth, *_: Recomputed(depth, border=border))
    model, inputs, wanted = tiny("hf_llama"), MODELS["hf_llama"].inputs(), targets.continuation(4)
    found = vitrail.compare(model, inputs, ["gae", "tokentm"], wanted)
    assert found[0].provenance["recomputed_blocks"] == border
    for one in found:
        expected = vitrail.explain(model, inputs, one.method, wanted, memory="full").scores
        assert_close(one.scores, expected, atol=1e-12, rtol=1e-9)


def test_every_part_of_an_answer_runs_the_blocks_again():
    model, inputs = tiny("hf_llama"), MODELS["hf_llama"].inputs()
    expected = vitrail.answer(model, inputs, 5, method="gae", memory="full").table
    assert_close(vitrail.answer(model, inputs, 5, method="gae", memory="low").table, expected)


@pytest.mark.usefixtures("little_to_search")
def test_tokentm_keeps_no_more_states_of_the_forward_pass_than_gae():
    """At the end of the blocks; lengths and angles are read of a block as soon as it has run."""
    model, inputs = copy.deepcopy(tiny("timm_vit")), MODELS["timm_vit"].inputs()
    model.requires_grad_(requires_grad=False)
    alive = []

    def count(module, args, out):
        gc.collect()
        found = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape == out.shape]
        alive.append(len(found))

    for method in ("gae", "tokentm"):
        vitrail.explain(model, inputs, method, 1)  # the first call measures the model
    model.norm.register_forward_hook(count)
    for method in ("gae", "tokentm"):
        vitrail.explain(model, inputs, method, 1)
        vitrail.explain(model, inputs, method, 1)
    assert alive[3] - alive[1] <= 1


def test_no_graph_and_no_layer_is_kept_between_the_passes(monkeypatch):
    """What is alive after the forward pass: the stream before each block, and nothing of its attention."""
    seen = []
    model, inputs = tiny("hf_llama"), MODELS["hf_llama"].inputs()
    original = passes.Pass.__init__

    def looked_at(self, *args, **kwargs):
        original(self, *args, **kwargs)
        seen.extend(call.query.device.type for captured in self.captured for call in captured.calls)
        assert sorted(self.capture.recomputed.arguments) == [0, 1, 2]
        assert all(call.value is None and call.output is None for c in self.captured for call in c.calls)

    monkeypatch.setattr(passes.Pass, "__init__", looked_at)
    vitrail.explain(model, inputs, "gae", targets.continuation(5), memory="low")
    assert seen == ["meta"] * 3


@pytest.mark.parametrize("model", [Skipping, Between])
def test_a_second_path_between_blocks_is_refused(model):
    torch.manual_seed(0)
    model = model().eval()
    with pytest.raises(OptionError, match="one by one, which is not possible here"):
        vitrail.explain(model, IDS, "gae", 1, anatomy=WHERE, memory="low")
    assert vitrail.explain(model, IDS, "gae", 1, anatomy=WHERE, memory="full").scores.shape == (2, 7)


def test_a_block_that_does_something_else_the_second_time_is_refused():
    torch.manual_seed(0)
    with pytest.raises(SeamError, match="gives something else when it is run again"):
        vitrail.explain(Own(Counting).eval(), IDS, "gae", 1, anatomy=WHERE, memory="low")


def test_a_block_that_writes_into_what_enters_it_runs_again_on_what_entered_it():
    torch.manual_seed(0)
    model = Own(InPlace).double().eval()
    low, full = (vitrail.explain(model, IDS, "gae", 1, anatomy=WHERE, memory=memory) for memory in ("low", "full"))
    assert_close(low.scores, full.scores)


def test_what_cannot_be_run_again_says_so():
    model, inputs = tiny("hf_llama"), MODELS["hf_llama"].inputs()
    with pytest.raises(OptionError, match="not for attn_lrp"):
        vitrail.explain(model, inputs, "attn_lrp", memory="low")
    with pytest.raises(OptionError, match="computes its attention maps itself"):
        vitrail.explain(tiny("hf_llama_eager"), inputs, "gae", memory="low")
    with pytest.raises(OptionError, match="Did you mean low"):
        vitrail.explain(model, inputs, "gae", memory="lo")


def test_a_gpu_with_room_keeps_all_blocks_and_a_full_one_few(monkeypatch):
    stream = torch.zeros(1, 100, 10)  # 4,000 bytes
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 46_000)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 46_000)
    needed = []
    for free in (3_000_000, 1_000_000, 300_000, 0):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None, free=free: (free, 0))
        needed.append(blocks_to_drop(30, 0, stream))
    assert needed[0] == 0
    assert needed[-1] == 30
    assert needed == sorted(needed)
    assert 5 < needed[1] < 20


def test_what_the_first_block_keeps_decides_how_many_are_run_again(monkeypatch):
    model, inputs, wanted = tiny("hf_llama"), MODELS["hf_llama"].inputs(), targets.continuation(4)
    expected = vitrail.explain(model, inputs, "tokentm", wanted).scores
    monkeypatch.setattr(passes, "recomputed", lambda depth, *_: Recomputed(depth))
    monkeypatch.setattr(recompute, "_placed", torch.is_tensor)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 0)
    monkeypatch.setattr(recompute, "blocks_to_drop", lambda depth, taken, stream: 2)
    found = vitrail.explain(model, inputs, "tokentm", wanted)
    assert found.provenance["recomputed_blocks"] == 2
    assert_close(found.scores, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("name", CAUSAL)
def test_logits_are_those_of_the_rows_that_are_read(name, monkeypatch):
    model, inputs, shapes = tiny(name), MODELS[name].inputs(), []
    read = passes.read_output
    monkeypatch.setattr(
        passes, "read_output", lambda *a, **k: shapes.append(read(*a, **k).logits.shape) or read(*a, **k)
    )
    wanted = targets.continuation((4, 6), (6, 7))
    found = vitrail.explain(model, inputs, "gae", wanted).scores
    assert shapes[-1][:2] == (2, 3)
    assert vitrail.explain(model, inputs, "ifr", wanted).scores.shape == found.shape
    assert shapes[-1][:2] == (2, 3)
    monkeypatch.setattr(passes, "keeping", lambda model, inputs, rows: passes.nullcontext(inputs))
    assert_close(vitrail.explain(model, inputs, "gae", wanted).scores, found, atol=1e-12, rtol=1e-9)
    assert shapes[-1][:2] == (2, 9)


def test_the_head_of_a_model_without_the_keyword_reads_the_same_rows(monkeypatch):
    model, inputs, rows = tiny("hf_llama"), MODELS["hf_llama"].inputs(), []
    expected = vitrail.explain(model, inputs, "gae", targets.continuation(6)).scores
    plain = type(model).forward

    def forward(self, input_ids=None, attention_mask=None, use_cache=None):
        return plain(self, input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache)

    monkeypatch.setattr(type(model), "forward", forward)
    handle = model.lm_head.register_forward_hook(lambda module, args, out: rows.append(out.shape[1]))
    found = vitrail.explain(model, inputs, "gae", targets.continuation(6)).scores
    handle.remove()
    assert rows[-1] == 3
    assert_close(found, expected, atol=1e-12, rtol=1e-9)


def test_a_long_text_is_measured_by_a_part_of_it(monkeypatch):
    from vitrail.capture.structure import texts

    case = golden2("llm_llama")
    inputs = {"input_ids": case.item("seq0")["input_ids"].repeat(1, 2)}
    expected = vitrail.explain(case.model, inputs, "gae", targets.continuation(-3))
    monkeypatch.setattr(texts, "LONGEST", 10)
    monkeypatch.setattr(texts, "PART", 6)
    found = vitrail.explain(case.model, inputs, "gae", targets.continuation(-3))
    assert_close(found.scores, expected.scores)
    assert any("measured on 6 of the" in said for said in found.provenance["assumed"])
    assert not expected.provenance.get("assumed")


def test_a_model_that_orders_long_texts_otherwise_is_not_taken_for_what_it_does_with_short_ones():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40
    )
    model = transformers.BertForSequenceClassification(config).double().eval()
    second = model.bert.encoder.layer[1]
    second.register_forward_pre_hook(lambda _, args: (args[0].flip(1) if args[0].shape[1] > 40 else args[0], *args[1:]))
    with pytest.raises(vitrail.VitrailError):
        vitrail.explain(model, {"input_ids": torch.randint(3, 60, (1, 80))}, "gae", 1)
