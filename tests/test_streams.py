"""Models with several streams: what is measured, and what the walk makes of it, against plain matrices in float64."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from stream_models import TABLE, prepared
from torch.testing import assert_close
from type_checks import unchecked

import vitrail
from vitrail import targets
from vitrail.api import stream_gradients
from vitrail.capture.structure import stream_checks
from vitrail.capture.structure.streams import Transition
from vitrail.errors import MethodError, RuleError, SeamError

SIZE = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 40,
        "max_position_embeddings": 32}  # fmt: skip


def seeded(make):
    torch.manual_seed(0)
    return make().double().eval()


@pytest.fixture(scope="module")
def bart():
    return seeded(lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZE)))


def texts(batch=2, source=9, answer=6):
    torch.manual_seed(1)
    return {
        "input_ids": torch.randint(4, 40, (batch, source)),
        "attention_mask": torch.ones(batch, source, dtype=torch.long),
        "decoder_input_ids": torch.randint(4, 40, (batch, answer)),
    }


def maps_of(model, inputs, position, token, kind):
    """A and G of every attention of one kind, from the model's own outputs."""
    model.config._attn_implementation = "eager"
    out = model(**inputs, output_attentions=True)
    logit = out.logits[:, position, token]
    grads = torch.autograd.grad(logit.sum(), getattr(out, kind), allow_unused=True)
    return [(a.detach(), g) for a, g in zip(getattr(out, kind), grads, strict=True)]


def reference(model, inputs, position, token):
    """The walk from whole matrices, written out for an encoder and a decoder."""

    def weighed(kind):
        return [(g * a).clamp(min=0).mean(dim=1) for a, g in maps_of(model, inputs, position, token, kind)]

    own, cross, below = weighed("decoder_attentions"), weighed("cross_attentions"), weighed("encoder_attentions")
    batch, count = inputs["decoder_input_ids"].shape
    eye = lambda n: torch.eye(n, dtype=torch.float64).expand(batch, n, n)  # noqa: E731
    decoder, encoder = eye(count), torch.zeros(batch, count, inputs["input_ids"].shape[1], dtype=torch.float64)
    for a, c in zip(reversed(own), reversed(cross), strict=True):
        encoder = encoder + decoder @ c
        decoder = decoder + decoder @ a
    for a in reversed(below):
        encoder = encoder + encoder @ a
    return encoder[:, position], decoder[:, position]


def test_the_walk_equals_whole_matrices(bart):
    inputs = texts()
    found = vitrail.explain(bart, inputs, "gae", targets.logit(7, position=4))
    encoder, decoder = reference(bart, inputs, 4, 7)
    assert_close(found.streams["encoder"].scores, encoder)
    assert_close(found.streams["decoder"].scores, decoder)
    assert torch.equal(found.scores, found.streams["encoder"].scores)
    assert float(found.streams["decoder"].scores[:, 5:].abs().max()) == 0  # no credit to later tokens


def joint_matrices(model, inputs, label):
    """`Ā` of every attention call of an LXMERT, from its own maps; zero where the answer does not depend on it."""
    maps = []
    places = [module.dropout for name, module in model.named_modules() if type(module).__name__ == "LxmertAttention"]
    handles = [place.register_forward_hook(lambda module, args, out: maps.append(out)) for place in places]
    logits = model(**inputs).question_answering_score
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(logits[:, label].sum(), maps, materialize_grads=True)
    return [(a * g).clamp(min=0).mean(dim=1).detach() for a, g in zip(maps, gradients, strict=True)]


def test_streams_that_read_each_other_at_the_same_time_are_walked_together():
    model, inputs = prepared(TABLE["lxmert"])
    words, regions = inputs["input_ids"].shape[1], inputs["visual_feats"].shape[1]
    text, image, both = slice(words), slice(words, words + regions), words + regions
    found = joint_matrices(model, inputs, 3)
    steps = [[(text, text)]] * 2 + [[(image, image)]] * 2
    steps += [[(text, image), (image, text)], [(text, text)], [(image, image)]] * 2
    whole = torch.eye(both, dtype=torch.float64).expand(2, both, both)
    for step in steps:  # first to last: all calls of a step read the rows from before it
        mixing = torch.zeros(2, both, both, dtype=torch.float64)
        for queries, keys in step:
            mixing[:, queries, keys] = found.pop(0)
        whole = whole + mixing @ whole
    scores = vitrail.explain(model, inputs, "gae", 3).streams
    assert not found
    assert_close(scores["text"].scores, whole[:, 0, text])  # the answer is read from the first word
    assert_close(scores["image"].scores, whole[:, 0, image])


def test_padding_in_either_stream_changes_nothing(bart):
    inputs = texts()
    plain = vitrail.explain(bart, inputs, "gae", targets.logit(7, position=4))
    longer = {
        "input_ids": torch.nn.functional.pad(inputs["input_ids"], (0, 3), value=1),
        "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (0, 3)),
        "decoder_input_ids": torch.nn.functional.pad(inputs["decoder_input_ids"], (0, 2), value=1),
    }
    padded = vitrail.explain(bart, longer, "gae", targets.logit(7, position=4))
    for name in ("encoder", "decoder"):
        count = plain.streams[name].scores.shape[1]
        assert_close(padded.streams[name].scores[:, :count], plain.streams[name].scores)
        assert float(padded.streams[name].scores[:, count:].abs().max()) == 0


@pytest.mark.parametrize("method", ["gae", "rollout", "complete_gradient", "absolute_gradient"])
def test_a_batch_gives_the_same_as_its_samples(bart, method):
    inputs = texts()
    both = vitrail.explain(bart, inputs, method, targets.logit([7, 9], position=4))
    for i, token in enumerate((7, 9)):
        one = vitrail.explain(
            bart, {name: x[i : i + 1] for name, x in inputs.items()}, method, targets.logit(token, position=4)
        )
        for name in ("encoder", "decoder"):
            assert_close(one.streams[name].scores[0], both.streams[name].scores[i])


def test_rollout_keeps_what_it_starts_with(bart):
    found = vitrail.explain(bart, texts(), "rollout", targets.logit(7, position=4))
    total = sum(stream.scores.sum(dim=1) for stream in found.streams.values())
    assert_close(total, torch.ones(2, dtype=torch.float64))


def test_scores_depend_on_the_class(bart):
    inputs = texts()
    one, other = (vitrail.explain(bart, inputs, "gae", targets.logit(c, position=4)).scores for c in (7, 9))
    assert not torch.allclose(one, other)


def test_the_default_says_why_another_method_stands_in(bart):
    found = vitrail.explain(bart, texts(), target=targets.logit(7, position=4))
    assert found.method == "attn_lrp"
    assert "one stream" in found.provenance["default"]


def test_where_a_rule_is_missing_the_default_walks(bart, monkeypatch):
    def nowhere(*_):
        raise RuleError("no rule for this operation")

    monkeypatch.setitem(stream_gradients.METHODS, "attn_lrp", nowhere)
    target = targets.logit(7, position=4)
    found = vitrail.explain(bart, texts(), target=target)
    assert found.method == "gae"
    of_streams, of_rules = found.provenance["default"].split("(docs/streams.md). ")
    assert of_streams.startswith("consensus is defined on one stream")
    assert of_rules == "no rule for this operation"
    assert_close(found.scores, vitrail.explain(bart, texts(), "gae", target).scores)
    with pytest.raises(RuleError, match="no rule"):
        vitrail.explain(bart, texts(), "attn_lrp", target)


def test_a_method_of_one_stream_names_the_streams(bart):
    with pytest.raises(MethodError, match=r"encoder, decoder.*gae"):
        vitrail.explain(bart, texts(), "le_grad", targets.logit(7, position=4))


def test_a_convolution_between_attentions_is_refused():
    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(40, 16)
            self.first, self.second = (torch.nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
            self.mix = torch.nn.Conv1d(16, 16, 3, padding=1)

        def forward(self, input_ids):
            x = self.embed(input_ids)
            x = x + self.first(x, x, x)[0]
            x = self.mix(x.transpose(1, 2)).transpose(1, 2)
            return (x + self.second(x, x, x)[0]).mean(dim=1)

    with pytest.raises(SeamError, match="feed more than one row"):
        vitrail.explain(seeded(Mixing), {"input_ids": torch.randint(4, 40, (2, 7))}, "gae", 3)


def test_streams_are_saved_and_drawn(bart, tmp_path):
    found = vitrail.explain(bart, texts(), "gae", targets.logit(7, position=4))
    for suffix in (".json", ".npz"):
        path = found.save(tmp_path / f"found{suffix}")
        assert vitrail.Attribution.load(path).equals(found)
    page = found.to_html()
    assert "<strong>encoder</strong>" in page
    assert "<strong>decoder</strong>" in page
    assert found.save(tmp_path / "found.png").stat().st_size > 1000


VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
          "image_size": 24, "patch_size": 6}  # fmt: skip
LANGUAGE = {"model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip


def llava():
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **VISION}, text_config=LANGUAGE, image_token_index=39
    )
    return seeded(lambda: transformers.LlavaForConditionalGeneration(config))


def question():
    torch.manual_seed(1)
    ids = torch.cat([torch.full((1, 2), 3), torch.full((1, 16), 39), torch.randint(4, 38, (1, 4))], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 3, 24, 24).double(),
    }


def test_a_language_model_with_pictures_walks_down_its_tower(tmp_path):
    """The tower is read behind its last but one block; its patches are the image tokens of the text in order."""
    model, inputs = llava(), question()
    model.config._attn_implementation = model.config.vision_config._attn_implementation = "eager"
    model.config.text_config._attn_implementation = "eager"
    found = vitrail.explain(model, inputs, "gae", targets.next_token(7))
    seen = []
    handles = [
        module.register_forward_hook(lambda m, a, out: seen.append(out[1]))
        for name, module in model.named_modules()
        if name.endswith("self_attn")
    ]
    logit = model(**inputs).logits[0, -1, 7]
    for handle in handles:
        handle.remove()
    grads = torch.autograd.grad(logit, seen, allow_unused=True)
    assert [g is None for g in grads] == [False, False, True, False, False]
    maps = [None if g is None else (g * a).clamp(min=0).mean(dim=1)[0] for a, g in zip(seen, grads, strict=True)]
    text = torch.zeros(22, dtype=torch.float64)
    text[-1] = 1
    for m in (maps[4], maps[3]):
        text = text + text @ m
    image = torch.cat([torch.zeros(1, dtype=torch.float64), text[2:18]])
    for m in (maps[1], maps[0]):
        image = image + image @ m
    assert_close(found.streams["text"].scores[0], text.detach())
    assert_close(found.streams["image"].scores[0], image[1:].detach())
    assert found.streams["image"].grid == (4, 4)
    assert torch.equal(found.scores, found.streams["text"].scores)
    assert found.save(tmp_path / "found.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["llava_siglip", "qwen2_vl_two"])
def test_a_model_that_first_sees_a_batch_of_many_gives_each_sample_its_own(name):
    """Pictures that stand in one row, and texts beside pictures, are not cut as a batch of one tensor is."""
    model, inputs = prepared(TABLE[name], batch=4)
    found = vitrail.explain(model, inputs, "gae", targets.next_token(7))
    pictures = len(inputs["pixel_values"]) // 4
    for i in (0, 3):
        one = {key: x[i * (n := len(x) // 4) : (i + 1) * n] for key, x in inputs.items()}
        assert len(one["pixel_values"]) == pictures
        alone = vitrail.explain(model, one, "gae", targets.next_token(7))
        for key, stream in alone.streams.items():
            assert_close(found.streams[key].scores[i : i + 1], stream.scores)


@pytest.mark.parametrize("name", ["llava_siglip", "detr"])
def test_frozen_weights_change_nothing(name):
    """A pooling query and object queries are parameters, and have no graph of their own where they are frozen."""
    case = TABLE[name]
    model, inputs = prepared(case)
    expected = vitrail.explain(model, inputs, "gae", case.target)
    frozen = prepared(case)[0].requires_grad_(requires_grad=False)
    found = vitrail.explain(frozen, inputs, "gae", case.target)
    for key, stream in expected.streams.items():
        assert_close(found.streams[key].scores, stream.scores)
    assert not any(x.requires_grad for x in frozen.parameters())


class Crossing(torch.nn.Module):
    """A text that asks for another one; an order may be given to the values, and to the samples inside."""

    def __init__(self, values=None, samples=None):
        super().__init__()
        self.words = torch.nn.Embedding(40, 16)
        self.below, self.ask, self.read, self.give = (torch.nn.Linear(16, 16) for _ in range(4))
        self.head, self.values, self.samples = torch.nn.Linear(16, 5), values, samples

    def attend(self, x, y, z):
        heads = [f(t).unflatten(-1, (2, 8)).transpose(1, 2) for f, t in ((self.ask, x), (self.read, y), (self.give, z))]
        return torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)

    def forward(self, input_ids, decoder_input_ids):
        x, y = self.words(decoder_input_ids), self.words(input_ids)
        x, y = (t if self.samples is None else t[self.samples] for t in (x, y))
        y = y + self.attend(y, y, y)
        x = x + self.attend(x, y, y if self.values is None else y[:, self.values])
        return self.head(x.mean(dim=1) if self.samples is None else x.mean(dim=1)[self.samples])


def two_texts():
    torch.manual_seed(1)
    return {"input_ids": torch.randint(4, 40, (2, 7)), "decoder_input_ids": torch.randint(4, 40, (2, 5))}


def test_values_of_other_tokens_than_the_keys_are_refused():
    found = vitrail.explain(seeded(Crossing), two_texts(), "gae", 3)
    assert list(found.streams) == ["encoder", "decoder"]
    assert "assumed" not in found.provenance  # values and samples are measured
    order = torch.tensor([1, 0, 2, 3, 4, 6, 5])
    with pytest.raises(SeamError, match="another row of its values than of its keys"):
        vitrail.explain(seeded(lambda: Crossing(values=order)), two_texts(), "gae", 3)


def test_samples_that_change_places_inside_a_model_are_refused():
    with pytest.raises(SeamError, match="one sample at a time"):
        vitrail.explain(seeded(lambda: Crossing(samples=torch.tensor([1, 0]))), two_texts(), "gae", 3)


class Windows(torch.nn.Module):
    """Attention in windows of four tokens, one window of all samples after the other; then over all tokens."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 5)
        self.first, self.second = (torch.nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

    def forward(self, input_ids):
        x = self.words(input_ids).unflatten(1, (3, 4)).transpose(0, 1).flatten(0, 1)
        x = x + self.first(x, x, x)[0]
        x = x.unflatten(0, (3, -1)).transpose(0, 1).flatten(1, 2)
        return self.head((x + self.second(x, x, x)[0]).mean(dim=1))


def test_windows_of_all_samples_one_after_the_other_belong_to_their_samples():
    model, ids = seeded(Windows), torch.randint(4, 40, (2, 12), generator=torch.Generator().manual_seed(1))
    both = vitrail.explain(model, {"input_ids": ids}, "gae", 3)
    for i in range(2):
        assert_close(vitrail.explain(model, {"input_ids": ids[i : i + 1]}, "gae", 3).scores[0], both.scores[i])


def test_a_tower_alone_of_a_model_with_two_is_one_stream():
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.SiglipConfig(vision_config={**small, "image_size": 24, "patch_size": 6}, num_labels=5)
    config._attn_implementation = "eager"
    model = seeded(lambda: transformers.SiglipForImageClassification(config))
    picture = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1)).double()
    out = model(picture, output_attentions=True)
    grads = torch.autograd.grad(out.logits[:, 2].sum(), out.attentions)
    row = torch.full((2, 1, 16), 1 / 16, dtype=torch.float64)
    for a, g in reversed([*zip(out.attentions, grads, strict=True)]):
        row = row + row @ (a * g).clamp(min=0).mean(dim=1)
    assert_close(vitrail.explain(model, picture, "gae", 2).scores, row[:, 0].detach())
    assert vitrail.explain(model, picture, target=2).method == "consensus"


def cross_walk(model, inputs, position, token):
    """Relevance of what a decoder reads and of its own tokens, from whole matrices."""
    model.config._attn_implementation = "eager"
    out = model(**inputs, output_attentions=True)
    own = getattr(out, "decoder_attentions", None) or out.attentions
    maps = [*own, *out.cross_attentions]
    grads = torch.autograd.grad(out.logits[:, position, token].sum(), maps)
    weighed = [(g * a).clamp(min=0).mean(dim=1).detach() for a, g in zip(maps, grads, strict=True)]
    decoder = torch.zeros(2, 1, own[0].shape[2], dtype=torch.float64)
    decoder[:, :, position] = 1
    encoder = torch.zeros(2, 1, weighed[-1].shape[2], dtype=torch.float64)
    for a, c in reversed([*zip(weighed[: len(own)], weighed[len(own) :], strict=True)]):
        encoder, decoder = encoder + decoder @ c, decoder + decoder @ a
    return encoder[:, 0], decoder[:, 0]


def with_states(bart):
    inputs = texts()
    states = bart.get_encoder()(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    return bart, {"encoder_outputs": states, "decoder_input_ids": inputs["decoder_input_ids"]}


def crossing_gpt2():
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32, add_cross_attention=True)  # fmt: skip  # noqa: E501
    model = seeded(lambda: transformers.GPT2LMHeadModel(config))
    states = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2)).double()
    return model, {"input_ids": texts()["decoder_input_ids"], "encoder_hidden_states": states}


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_states_of_an_encoder_that_ran_before_are_a_stream(bart, name):
    model, inputs = with_states(bart) if name == "bart" else crossing_gpt2()
    found = vitrail.explain(model, inputs, "gae", targets.logit(7, position=5))
    encoder, decoder = cross_walk(model, inputs, 5, 7)
    assert_close(found.streams["encoder"].scores, encoder)
    assert_close(found.streams["decoder"].scores, decoder)


@pytest.mark.parametrize("sources", [[0, 1], [1, 0]])
def test_tokens_that_are_merged_with_one_of_a_measured_sample_are_of_that_sample(sources):
    """In whichever order they are merged: one target stands in several rows."""
    merge = Transition(torch.tensor(sources), torch.tensor([2, 2]), torch.full((2,), 0.5))
    with unchecked():  # of the streams only the events are read
        found = stream_checks._reached(SimpleNamespace(events=[merge]), torch.tensor([True, False, False, False]))
    assert found.tolist() == [True, True, True, False]
