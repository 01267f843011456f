"""The border: what users may get wrong, and what every result carries."""

import json
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from applying import WALKING
from tiny_models import MODELS, tiny
from torch import nn
from torch.testing import assert_close
from type_checks import unchecked

import vitrail
from vitrail.capture.recording.events import Events, events_of
from vitrail.errors import AnatomyError, InputError, MethodError, OptionError, SeamError, VitrailError
from vitrail.relevance.walk import LayerReader, Result, walk_events

BERT = "hf_bert"


def explain(method="gae", name=BERT, inputs=None, **options):
    return vitrail.explain(tiny(name), MODELS[name].inputs() if inputs is None else inputs, method, **options)


def test_the_public_names_are_what_is_exported():
    assert set(vitrail.__all__) <= set(dir(vitrail))
    assert all(hasattr(vitrail, name) for name in vitrail.__all__)
    named = {"explain", "compare", "Explainer", "record", "METHODS", "targets", "Attribution", "Anatomy"}
    assert named <= set(vitrail.__all__)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"method": "gea"}, "Did you mean gae"),
        ({"method": "tokentm", "lenght": False}, "Did you mean length"),
        ({"method": "tokentm", "embedding": "norm"}, "normed"),
        ({"method": "gradtoken", "scheme": "average"}, "average_matmul"),
        ({"method": "gradtoken", "scheme": 4}, "scheme takes str, not 4"),
        ({"method": "gradtoken", "depth": True}, "depth takes int, not True"),
        ({"preset": "offical"}, "Did you mean official"),
        ({"method": "tokentm", "preset": "official"}, "released no code"),
        ({"backend": "fast"}, "Known: auto, chunked, dense"),
        ({"backend": "chunked", "chunk_rows": 0}, "at least one"),
    ],
)
def test_a_wrong_word_is_an_error_that_names_the_near_ones(wrong, words):
    with pytest.raises((MethodError, OptionError), match=words):
        explain(**wrong)


IDS = torch.tensor([[1, 5, 2]])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"ids": [1, 2]}, "no tensor"),
        ({"input_ids": IDS[0]}, "batch axis missing"),
        ({"input_ids": 0 * IDS + 60}, "token 60 is not among the 60"),
        ({"inputs_embeds": torch.randn(1, 21, 24)}, "21 tokens, but .* has 20 positions"),
        (torch.randn(32, 32), "batch axis missing"),
        (torch.full((1, 3, 32, 32), torch.nan), "NaN or infinite"),
        ({"input_ids": IDS[:, :0]}, "is empty"),
        ({"input_ids": IDS, "attention_mask": 0 * IDS}, "one of the texts is empty"),
        ({"input_ids": torch.ones(1, 21, dtype=torch.int64)}, "21 tokens, but .* has 20 positions"),
    ],
)
def test_inputs_that_cannot_be_explained_are_errors_that_say_why(inputs, words):
    with pytest.raises(InputError, match=words):
        explain(inputs=inputs)


def test_a_bare_text_is_an_error_that_names_the_tokenizer():
    with pytest.raises(InputError, match="tokenizer returns"):
        vitrail.models.inputs.read_inputs("a cat")


def test_roberta_counts_its_positions_from_behind_the_padding_index():
    with pytest.raises(InputError, match=r"20 tokens, but .* has 19 positions"):
        explain(name="hf_roberta", inputs={"input_ids": torch.ones(1, 20, dtype=torch.int64) * 5})


def test_logits_that_are_nan_are_an_error():
    model = MODELS[BERT].build()
    nn.init.constant_(model.classifier.bias, torch.nan)
    with pytest.raises(InputError, match="logits contain NaN"):
        vitrail.explain(model, MODELS[BERT].inputs())


def test_a_ratio_that_is_not_finite_is_an_error_and_not_a_map():
    model = MODELS[BERT].build()
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    with pytest.raises(InputError, match=r"use targets.difference"):
        vitrail.explain(model, MODELS[BERT].inputs(), "gae", vitrail.targets.ratio(0, 1))


class Unknown(nn.Module):
    """A user's Vision Transformer of no known family: one class token, blocks of its own."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)
            self.ffn = nn.Sequential(nn.Linear(12, 12), nn.ReLU())
            self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
            z = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(z.transpose(1, 2).flatten(2))
            return x + self.ffn(self.norm2(x))

    def __init__(self):
        super().__init__()
        self.patches, self.cls = nn.Conv2d(3, 12, 4, 4), nn.Parameter(torch.randn(1, 1, 12))
        self.trunk = nn.ModuleList([self.Block() for _ in range(3)])
        self.head = nn.Linear(12, 5)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        for block in self.trunk:
            x = block(x)
        return self.head(x[:, 0])


OWN = vitrail.Anatomy(
    blocks="trunk", output="out", value_bias="qkv.bias", attention_norm="norm1", ffn_norm="norm2", ffn_input="ffn",
    ffn_output="ffn", prefix=1, readout="cls",
)  # fmt: skip


def test_the_parts_of_an_unknown_model_are_found_as_its_anatomy_names_them():
    model, inputs = Unknown().double(), torch.randn(2, 3, 12, 20, dtype=torch.float64)
    found, named = (vitrail.compare(model, inputs, WALKING, anatomy=anatomy) for anatomy in (None, OWN))
    for a, b in zip(found, named, strict=True):
        assert_close(a.scores, b.scores)


def test_a_model_without_attention_is_an_error_that_says_what_was_found():
    convolutions = nn.Sequential(nn.Conv2d(3, 5, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(SeamError, match=r"no attention was seen.*Conv2d"):
        vitrail.explain(convolutions, torch.randn(1, 3, 12, 20))


def test_an_anatomy_of_ones_own_opens_every_method():
    found = vitrail.compare(Unknown(), torch.randn(2, 3, 12, 20), WALKING, anatomy=OWN)
    assert all(a.grid == (3, 5) for a in found)


def test_attention_methods_need_no_more_than_prefix_and_readout():
    model, inputs = Unknown(), torch.randn(2, 3, 12, 20)
    methods = ["raw_attention", "rollout", "grad_cam", "gae", "complete_gradient", "gradtoken", "att_grads"]
    bare = vitrail.compare(model, inputs, methods, anatomy=vitrail.Anatomy(prefix=1, readout="cls"))
    known = vitrail.compare(model, inputs, methods, anatomy=OWN)
    for a, b in zip(bare, known, strict=True):
        assert_close(a.scores, b.scores)
    with pytest.raises(VitrailError, match="was not recorded"):
        vitrail.explain(model, inputs, "tokentm", anatomy=vitrail.Anatomy(prefix=1, readout="cls"))


def test_blocks_that_are_not_there_are_named():
    with pytest.raises(AnatomyError, match="Lists of modules found: trunk"):
        vitrail.explain(Unknown(), torch.randn(1, 3, 12, 20), anatomy=vitrail.Anatomy(blocks="blocks"))


def test_a_wrong_readout_names_the_right_ones():
    with pytest.raises(AnatomyError, match="cls, last, mean"):
        vitrail.explain(Unknown(), torch.randn(1, 3, 12, 20), anatomy=vitrail.Anatomy(readout="class"))


def test_a_prefix_that_nobody_named_is_measured_and_a_wrong_one_refused():
    images, anatomy = torch.randn(1, 3, 12, 20), vitrail.Anatomy(readout="cls")
    assert vitrail.explain(Unknown(), images, "gae", anatomy=anatomy).grid == (3, 5)
    with pytest.raises(AnatomyError, match="says that 4 tokens stand before the patches, but 1"):
        vitrail.explain(Unknown(), images, "gae", anatomy=vitrail.Anatomy(prefix=4, readout="cls"))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity()])
        self.one, self.two = (nn.MultiheadAttention(12, 3, batch_first=True) for _ in range(2))
        self.layers[0].forward = lambda x: self.two(self.one(x, x, x)[0], x, x)[0]

    def forward(self, x):
        return self.layers[0](x.flatten(2).transpose(1, 2)).mean(dim=1)


def test_a_block_that_attends_twice_is_an_error_with_the_counts():
    with pytest.raises(SeamError, match=r"attention calls in its 1 blocks are \[2\]"):
        vitrail.explain(Twice(), torch.randn(1, 12, 3, 3), anatomy=vitrail.Anatomy(blocks="layers", readout="mean"))


def test_what_every_result_carries():
    found = explain("gradtoken", depth=2)
    assert found.method == "gradtoken"
    assert found.preset == "recommended"
    assert found.options == {"scheme": "average_matmul", "heads": "relu_mean", "depth": 2}
    assert found.label == "gradtoken(depth=2)"
    origin = found.provenance
    assert origin["model_class"] == "BertForSequenceClassification"
    assert len(origin["model_hash"]) == 16
    assert origin["versions"]["torch"] == torch.__version__.split("+")[0] or "+" in torch.__version__
    assert origin["seconds"] > 0
    json.dumps(dict(origin))


def test_the_fingerprint_follows_the_weights():
    from vitrail.capture.provenance import fingerprint

    model = MODELS[BERT].build()
    before = fingerprint(model)
    assert fingerprint(model) == before
    weight = model.bert.encoder.layer[1].output.dense.weight
    weight.data += 1e-3
    changed = fingerprint(model)
    assert changed != before
    weight.data = weight.data.t().contiguous().t()  # the same numbers in another order in memory
    assert fingerprint(model) == changed
    weight.data -= 1e-3
    assert fingerprint(model) != changed
    assert fingerprint(model.float()) not in (before, changed)


def test_compare_runs_the_model_once_and_gives_what_explain_gives():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    runs = []
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    vitrail.explain(model, inputs, "gae")  # the first call measures the model's structure
    runs.clear()
    methods = [*WALKING, ("gradtoken", {"depth": 2}), ("tokentm", {"scalar": "logit"})]
    together = vitrail.compare(model, inputs, methods, [0, 3])
    handle.remove()
    assert len(runs) == 1
    for spec, found in zip(methods, together, strict=True):
        name, options = (spec, {}) if isinstance(spec, str) else spec
        alone = vitrail.explain(model, inputs, name, [0, 3], **options)
        assert_close(found.scores, alone.scores)
        assert (found.label, found.target) == (alone.label, alone.target)
    assert together["gradtoken(depth=2)"] is together[-2]
    with pytest.raises(MethodError, match="not in this comparison"):
        together["lrp"]


@pytest.fixture
def computing_time(monkeypatch):
    """Seconds are those that this process computes, whatever else runs on the machine."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)


def test_each_walk_is_credited_with_the_seconds_of_its_own_steps(monkeypatch):
    now = [0.0]

    def taking(seconds):
        def step(state, _):
            now[0] += seconds
            return state

        return LayerReader(start=lambda _: 0, step=step, finish=lambda *_: Result(torch.zeros(1, 1)))

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    one = {"valid": torch.ones(1, 1), "pooling": False}
    layers = [SimpleNamespace(index=1, is_last=True, **one), SimpleNamespace(index=0, is_last=False, **one)]
    with unchecked():
        found = walk_events([taking(1.0), taking(10.0), taking(100.0)], Events(events_of(layers)))
    assert [one.seconds for one in found] == [2.0, 20.0, 200.0]


@pytest.mark.usefixtures("computing_time")
def test_every_result_of_a_comparison_carries_its_own_seconds():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    begun = time.perf_counter()
    found = vitrail.compare(model, inputs, ["gae", "rollout", ("integrated_gradients", {"steps": 12}), "attn_lrp"])
    total = time.perf_counter() - begun
    seconds = [one.provenance["seconds"] for one in found]
    (shared,) = {one.provenance["shared_seconds"] for one in found}
    assert len(set(seconds)) == 4
    assert min(*seconds, shared) > 0
    assert sum(seconds) + shared <= total
    assert seconds[2] > max(seconds[:2])  # twelve steps of its own against a walk over three layers


def test_alone_a_result_shares_its_time_with_nobody():
    begun = time.perf_counter()
    found = explain("gae").provenance
    total = time.perf_counter() - begun
    assert 0 < found["seconds"] <= total
    assert found["shared_seconds"] == 0


@pytest.mark.usefixtures("computing_time")
def test_a_walk_beside_a_procedure_owns_its_passes():
    model, inputs = tiny(BERT), MODELS[BERT].inputs()
    walk, other = vitrail.compare(model, inputs, ["gae", "attn_lrp"], 1)
    many, *_ = vitrail.compare(model, inputs, ["gae", *WALKING], 1)
    assert walk.provenance["seconds"] > many.provenance["seconds"]  # with the forward and backward pass, and without
    assert other.provenance["seconds"] != walk.provenance["seconds"]


def test_a_comparison_is_asked_by_its_exact_label_first():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    later, plain = ("gae", {"start_layer": 2}), "gae"
    both = vitrail.compare(model, inputs, [later, plain])
    assert both.labels == ("gae(start_layer=2)", "gae")
    assert both["gae"] is both[1]
    assert both["gae(start_layer=2)"] is both[0]
    assert vitrail.compare(model, inputs, [later, "rollout"])["gae"].label == "gae(start_layer=2)"  # the only one


def test_a_name_that_stands_for_several_results_is_an_error_that_lists_them():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    found = vitrail.compare(model, inputs, [("gae", {"start_layer": 1}), ("gae", {"start_layer": 2}), "rollout"])
    with pytest.raises(MethodError, match=r"2 results .* gae\(start_layer=1\), gae\(start_layer=2\)"):
        found["gae"]
    twice = vitrail.compare(model, inputs, ["gae", "gae"])
    with pytest.raises(MethodError, match="'gae' names 2 results"):
        twice["gae"]


def test_masking_special_tokens_runs_the_model_apart_and_gives_them_nothing():
    model, inputs = tiny(BERT), MODELS[BERT].inputs()
    methods = ["attcat", ("attcat", {"mask_special_tokens": True}), "gae"]
    plain, masked, gae = vitrail.compare(model, inputs, methods, 1)
    assert_close(gae.scores, explain("gae", target=1).scores)
    assert_close(masked.scores[:, [0, 8]], torch.zeros(2, 2, dtype=torch.float64))
    assert not torch.allclose(masked.scores, plain.scores)
    named = {**inputs, "special_tokens_mask": torch.zeros_like(inputs["input_ids"])}
    named["special_tokens_mask"][:, 4] = 1
    found = explain("attcat", inputs=named, mask_special_tokens=True, target=1)
    assert_close(found.scores[:, 4], torch.zeros(2, dtype=torch.float64))


def test_an_image_has_no_special_tokens_to_mask():
    with pytest.raises(InputError, match="text only"):
        explain("attcat", name="timm_vit", mask_special_tokens=True)


def test_presets_are_the_papers_or_the_released_codes():
    images, text = MODELS["timm_vit"].inputs(), MODELS[BERT].inputs()
    assert vitrail.explain(tiny("timm_vit"), images, "rollout", preset="official").options["start_layer"] == 1
    assert vitrail.explain(tiny(BERT), text, "rollout", preset="official").options["start_layer"] == 0
    assert vitrail.explain(tiny(BERT), text, "attcat", preset="official").options["states"] == "input"
    assert vitrail.explain(tiny(BERT), text, "attcat", preset="paper").options["states"] == "output"


@pytest.mark.parametrize("name", vitrail.METHODS)
def test_every_entry_of_the_table_says_what_it_is(name):
    entry = vitrail.METHODS[name]
    assert entry.summary.endswith(".")
    assert entry.paper
    assert "paper" in entry.presets
    for preset in entry.presets.values():
        assert set(preset) <= set(entry.options)


def test_a_head_of_ones_own_on_a_known_base_is_read_where_its_gradient_is():
    import transformers

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = transformers.BertModel(tiny(BERT).config, add_pooling_layer=False)
            self.head = nn.Linear(24, 4)

        def forward(self, input_ids, attention_mask):
            return self.head(self.base(input_ids, attention_mask).last_hidden_state[:, 1])

    model, inputs = Second().double().eval(), MODELS[BERT].inputs()
    for layer in vitrail.record(model, inputs).layers:
        assert_close(layer.readout, torch.eye(9, dtype=torch.float64)[[1, 1]])
    assert bool((vitrail.explain(model, inputs, "rollout").scores[:, 1] > 0.1).all())


def test_a_long_sequence_is_walked_in_blocks():
    from vitrail.relevance.backends import choose_backend

    choose = partial(choose_backend, "auto", refusal="no kernel here", shared=False)
    assert choose(entries=2**16, device="cpu") == "dense"
    assert choose(entries=2**20, device="cpu") == "chunked"
    assert choose(entries=2**20, device="cuda") == "dense"
    assert choose(entries=2**28, device="cuda") == "chunked"


def test_a_compiled_model_is_explained_through_its_original():
    model, inputs = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    assert_close(vitrail.explain(torch.compile(model), inputs).scores, vitrail.explain(model, inputs).scores)


def test_a_comparison_can_keep_what_works_and_name_what_does_not():
    model, inputs = tiny("hf_bert"), MODELS["hf_bert"].inputs()
    methods = ["gae", "vit_cx", ("rollout", {"start_layer": 99}), "attcat"]
    kept = vitrail.compare(model, inputs, methods, 1, on_error="keep")
    assert [one.method for one in kept] == ["gae", "attcat"]
    assert set(kept.failed) == {1, 2}
    assert all(isinstance(error, vitrail.VitrailError) for error in kept.failed.values())
    assert_close(kept["gae"].scores, vitrail.explain(model, inputs, "gae", 1).scores)
    assert vitrail.compare(model, inputs, ["gae", "attcat"], 1, on_error="keep").failed == {}
    with pytest.raises(vitrail.VitrailError):
        vitrail.compare(model, inputs, methods, 1)
    with pytest.raises(OptionError, match="on_error='skip'"):
        vitrail.compare(model, inputs, methods, 1, on_error="skip")


def test_several_targets_are_explained_and_refused_as_one_is():
    model, x = tiny("timm_vit"), MODELS["timm_vit"].inputs()
    for found, target in zip(vitrail.compare(model, x, "gae", targets=[0, 2]), [0, 2], strict=True):
        assert_close(found.scores, vitrail.explain(model, x, "gae", target).scores)
    found = vitrail.compare(model, x, ["gae", "rollout"], targets=[0, 2], on_error="keep")
    assert [(one.method, one.target.first[0]) for one in found] == [
        ("gae", 0),
        ("rollout", 0),
        ("gae", 2),
        ("rollout", 2),
    ]
    found = vitrail.compare(model, x, ["gae", "nothing"], targets=[0, 2], on_error="keep")
    assert list(found.failed) == [1, 3]
    for wrong in ({"target": 0, "targets": [1]}, {"targets": []}):
        with pytest.raises(OptionError, match="target"):
            vitrail.compare(model, x, "gae", **wrong)
    with pytest.raises(InputError, match="batch axis missing"):
        vitrail.compare(model, x[0], "gae", targets=[0, 2])
    with pytest.raises(InputError, match=r"torch\.vmap"):
        torch.vmap(lambda one: vitrail.compare(model, one[None], "gae", targets=[0, 2])[0].scores)(x)
