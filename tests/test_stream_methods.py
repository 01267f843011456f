"""Gradient methods and propagation rules on models with several streams, against plain autograd in float64."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from stream_models import TABLE, WORDS, ids, prepared, source_and_answer
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail import targets
from vitrail.errors import SeamError


def embeddings(model, inputs):
    table = model.get_input_embeddings()
    return {name: table(inputs[name]).detach() for name in ("input_ids", "decoder_input_ids")}


def gradients(model, embedded, mask, share):
    """The gradient of logit 7 at position 4, at both embeddings times a share."""
    points = [(x * share).requires_grad_() for x in embedded.values()]
    out = model(inputs_embeds=points[0], decoder_inputs_embeds=points[1], attention_mask=mask)
    scalar = out.logits[:, 4, 7]
    return scalar.detach(), torch.autograd.grad(scalar.sum(), points)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_integrated_gradients_are_a_plain_loop_over_both_embeddings(name):
    model, inputs = prepared(TABLE[name])
    steps, words = 4, embeddings(model, inputs)
    found = vitrail.explain(model, inputs, "integrated_gradients", targets.logit(7, position=4), steps=steps)
    totals = [0.0, 0.0]
    for step in range(steps):
        _, grads = gradients(model, words, inputs["attention_mask"], (step + 0.5) / steps)
        totals = [total + x * g / steps for total, x, g in zip(totals, words.values(), grads, strict=True)]
    sums = [total.sum(dim=-1) for total in totals]
    assert_close(found.streams["encoder"].scores, sums[0])
    assert_close(found.streams["decoder"].scores, sums[1])
    (value, _), (zero, _) = (gradients(model, words, inputs["attention_mask"], share) for share in (1.0, 0.0))
    residual = torch.tensor(found.provenance["residual"], dtype=torch.float64)
    assert_close(residual, value - zero - sums[0].sum(dim=1) - sums[1].sum(dim=1))


def test_input_times_gradient_of_a_picture_is_summed_over_the_patches_of_the_tower():
    model, inputs = prepared(TABLE["llava"])
    found = vitrail.explain(model, inputs, "input_x_gradient", targets.next_token(7))
    pixels = inputs["pixel_values"].clone().requires_grad_()
    logit = model(**{**inputs, "pixel_values": pixels}).logits[:, -1, 7]
    (gradient,) = torch.autograd.grad(logit.sum(), pixels)
    expected = (pixels.detach() * gradient).sum(dim=1).view(2, 4, 6, 4, 6).sum(dim=(2, 4)).flatten(1)
    assert found.streams["image"].grid == (4, 4)
    assert "assumed" not in found.streams["image"].provenance
    assert_close(found.streams["image"].scores, expected)


def test_patches_that_are_packed_in_one_row_come_back_as_pictures():
    model, inputs = prepared(TABLE["qwen2_vl_two"])
    found = vitrail.explain(model, inputs, "input_x_gradient", targets.next_token(7))
    assert {name: one.grid for name, one in found.streams.items()} == {"image": (4, 6), "image_2": (4, 4), "text": None}
    pixels = inputs["pixel_values"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(**{**inputs, "pixel_values": pixels}).logits[:, -1, 7].sum(), pixels)
    each = (pixels.detach() * gradient).sum(dim=1).split([24, 16, 24, 16])  # by sample, then by picture
    rows = torch.arange(24).view(2, 3, 2, 2).permute(0, 2, 1, 3).reshape(-1)  # two by two patches stand together
    assert_close(found.streams["image"].scores, torch.stack([each[0][rows], each[2][rows]]))
    assert_close(found.streams["image_2"].scores.sum(dim=1), torch.stack([each[1].sum(), each[3].sum()]))


class Reader(nn.Module):
    """A pre-norm encoder layer and a decoder layer that reads it; `rules` runs it with the rules of AttnLRP."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 12), nn.Linear(12, WORDS)
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(5))
        self.projections = nn.ModuleList(nn.ModuleList(nn.Linear(12, 12) for _ in range(4)) for _ in range(3))
        self.feed = nn.ModuleList([nn.Linear(12, 20), nn.Linear(20, 12)])

    def forward(self, input_ids, decoder_input_ids):
        source, answer = self.embed(input_ids), self.embed(decoder_input_ids)
        return self.run(source, answer, plain_attention, lambda norm, x: norm(x), F.gelu)

    def run(self, source, answer, attend, normed, activation):
        def part(index, queries, keys, *, causal=False):
            q, k, v, out = self.projections[index]
            heads = [f(x).unflatten(-1, (2, 6)).transpose(1, 2) for f, x in ((q, queries), (k, keys), (v, keys))]
            return out(attend(*heads, causal).transpose(1, 2).flatten(2))

        x = normed(self.norms[0], source)
        source = source + part(0, x, x)
        source = normed(self.norms[1], source)
        x = normed(self.norms[2], answer)
        answer = answer + part(1, x, x, causal=True)
        answer = answer + part(2, normed(self.norms[3], answer), source)
        answer = answer + self.feed[1](activation(self.feed[0](normed(self.norms[4], answer))))
        return self.head(answer)


def plain_attention(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def half(x):
    return 0.5 * x + 0.5 * x.detach()


def ruled_attention(q, k, v, causal):
    """Products share evenly; the softmax is differentiated as it is."""
    scores = half(q) @ half(k).transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return half(scores.softmax(dim=-1)) @ half(v)


def ruled_norm(norm, x):
    return ruled_layer_norm(x, norm.weight, norm.bias, norm.eps)


def ruled_layer_norm(x, weight, bias, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    deviation = (x.var(dim=-1, correction=0, keepdim=True) + eps).sqrt().detach()
    return centred / deviation * weight + bias


def ruled_gelu(x):
    return x * (F.gelu(x) / x).detach()


def test_attn_lrp_follows_its_rules_through_cross_attention():
    torch.manual_seed(0)
    model = Reader().double().eval()
    inputs = {"input_ids": ids(2, 7), "decoder_input_ids": ids(2, 5, 9)}
    source, answer = (model.embed(x).detach().requires_grad_() for x in inputs.values())
    logit = model.run(source, answer, ruled_attention, ruled_norm, ruled_gelu)[:, 4, 3]
    assert_close(logit, model(**inputs)[:, 4, 3])
    expected = [x.detach() * g for x, g in zip((source, answer), torch.autograd.grad(logit.sum(), (source, answer)), strict=True)]  # fmt: skip  # noqa: E501
    found = vitrail.explain(model, inputs, "attn_lrp", targets.logit(3, position=4))
    assert_close(found.streams["encoder"].scores, expected[0].sum(dim=-1))
    assert_close(found.streams["decoder"].scores, expected[1].sum(dim=-1))


def ruled_product(product):
    """A product of two tensors shares evenly; a constant takes no share."""
    return lambda a, b: product(half(a), half(b)) if a.requires_grad and b.requires_grad else product(a, b)


def test_attn_lrp_follows_its_rules_through_two_towers_and_an_attention_pool(monkeypatch):
    model, inputs = prepared(TABLE["siglip"], batch=1)
    found = vitrail.explain(model, inputs, "attn_lrp", 1)
    model.requires_grad_(requires_grad=False)
    pixels, words = inputs["pixel_values"].clone().requires_grad_(), []
    table, length = model.text_model.embeddings.token_embedding, torch.Tensor.norm

    def rooted(module, args, out):
        words.append(out.detach().requires_grad_())
        return words[0]

    table.register_forward_hook(rooted)
    expected = model(**inputs).logits_per_image[0, 1]
    for module in model.modules():
        if isinstance(module, transformers.activations.GELUTanh):
            module.register_forward_hook(lambda m, given, out: given[0] * (out / given[0]).detach())
    with monkeypatch.context() as rules:
        rules.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: ruled_attention(q, k, v, causal=False))
        rules.setattr(F, "layer_norm", lambda x, shape, weight, bias, eps: ruled_layer_norm(x, weight, bias, eps))
        rules.setattr(torch.Tensor, "norm", lambda x, *a, **k: length(x, *a, **k).detach())
        rules.setattr(torch, "bmm", ruled_product(torch.bmm))
        rules.setattr(torch, "matmul", ruled_product(torch.matmul))
        words.clear()
        logit = model(**{**inputs, "pixel_values": pixels}).logits_per_image[0, 1]
    assert_close(logit.detach(), expected.detach())
    by_pixel, by_word = torch.autograd.grad(logit, (pixels, words[0]))
    patches = (pixels.detach() * by_pixel)[0].sum(dim=0).view(4, 6, 4, 6).sum(dim=(1, 3)).flatten()
    near = {"atol": 1e-8, "rtol": 1e-6}
    assert_close(found.streams["image"].scores[0], patches, **near)
    assert_close(found.streams["text"].scores[0], (words[0].detach() * by_word).sum(dim=-1)[1], **near)


def test_packed_patches_are_compared_with_any_number_of_texts(tmp_path):
    """Two pictures and three texts; a picture of 3 x 4 patches and four places of padding."""
    model, inputs = prepared(TABLE["siglip2"])
    texts = {"input_ids": ids(3, 6, 11), "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    both = vitrail.explain(model, {**inputs, **texts}, "gae", [2, 0])
    small = {"pixel_attention_mask": torch.tensor([[1] * 12 + [0] * 4]), "spatial_shapes": torch.tensor([[3, 4]])}
    for method in ("gae", "attn_lrp"):
        for i, label in enumerate((2, 0)):
            one = {name: x[i : i + 1] for name, x in inputs.items()}
            found = vitrail.explain(model, {**one, **texts}, method, label)
            assert {name: x.grid for name, x in found.streams.items()} == {"image": (4, 4), "text": None}
            if method == "gae":
                assert_close(found.scores, both.scores[i : i + 1])
        found = vitrail.explain(model, {**one, **texts, **small}, method, 1)
        assert found.grid == (3, 4)
        assert bool((found.scores != 0).all())
    assert found.save(tmp_path / "found.png").stat().st_size > 1000


def test_the_default_takes_gradients_where_attention_cannot_be_followed():
    model, inputs = prepared(TABLE["segformer"])
    with pytest.raises(SeamError, match="feed more than one row"):
        vitrail.explain(model, inputs, "gae", 3)
    found = vitrail.explain(model, inputs, target=3)
    named = vitrail.explain(model, inputs, "integrated_gradients", 3)
    assert found.method == "integrated_gradients"
    assert "feed more than one row" in found.provenance["default"]
    assert_close(found.scores, named.scores)
    assert "default" not in named.provenance


def continuation_by_matrices(model, inputs, first, last):
    """Gae of `sum log p` over columns of the decoder, from whole matrices; rows that predict them start alike."""
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    out = model(**inputs, output_attentions=True)
    logs = out.logits.log_softmax(dim=-1)
    rows = torch.arange(first - 1, last - 1)
    scalar = logs[:, rows].gather(2, inputs["decoder_input_ids"][:, rows + 1, None]).sum()
    kinds = ("decoder_attentions", "cross_attentions", "encoder_attentions")
    maps = [getattr(out, kind) for kind in kinds]
    grads = torch.autograd.grad(scalar, [x for kind in maps for x in kind])
    weighed = [(g * a).clamp(min=0).mean(dim=1) for g, a in zip(grads, (x for kind in maps for x in kind), strict=True)]
    own, cross, below = weighed[:2], weighed[2:4], weighed[4:]
    answer = torch.zeros(2, 1, inputs["decoder_input_ids"].shape[1], dtype=torch.float64)
    answer[:, :, rows] = 1 / len(rows)
    source = torch.zeros(2, 1, inputs["input_ids"].shape[1], dtype=torch.float64)
    for a, c in zip(reversed(own), reversed(cross), strict=True):
        source, answer = source + answer @ c, answer + answer @ a
    for a in reversed(below):
        source = source + source @ a
    return scalar.detach(), source[:, 0].detach(), answer[:, 0].detach()


def test_a_continuation_of_an_encoder_decoder_is_read_at_the_rows_that_predict_it():
    model, inputs = prepared(TABLE["t5"])
    found = vitrail.explain(model, inputs, "gae", targets.continuation(2, 5))
    _, source, answer = continuation_by_matrices(model, inputs, 2, 5)
    assert_close(found.streams["encoder"].scores, source)
    assert_close(found.streams["decoder"].scores, answer)
    assert_close(found.scores, source)


def test_every_token_of_a_decoders_answer_has_a_row_over_the_source():
    model, inputs = prepared(TABLE["t5"])
    found = vitrail.answer(model, inputs, 3, method="gae")
    assert found.table.shape == (2, 3, 9)
    for unit, column in enumerate((3, 4, 5)):
        one = vitrail.explain(model, inputs, "gae", targets.continuation(column, column + 1))
        assert_close(found.table[:, unit], one.streams["encoder"].scores)
    assert_close(found.sink, found.table[:, :, 0] / found.table.sum(dim=2))
    assert found.tokens == tuple(tuple(map(str, row)) for row in inputs["input_ids"].tolist())


@pytest.mark.parametrize("name", ["llava_two", "mllama", "qwen2_audio", "donut", "owlvit", "speech_bert"])
def test_gradients_have_the_streams_of_a_walk_and_a_batch_gives_what_its_samples_give(name):
    """Several pictures in one text, tiles, sounds below a language model, merged patches, texts of each sample."""
    case = TABLE[name]
    model, inputs = prepared(case)
    found = vitrail.explain(model, inputs, "input_x_gradient", case.target)
    walked = vitrail.explain(model, inputs, "gae", case.target)
    assert {k: one.grid for k, one in found.streams.items()} == {k: one.grid for k, one in walked.streams.items()}
    sounds = {"qwen2_audio": ("audio", 24), "speech_bert": ("encoder", 200)}  # at frames and samples, not at tokens
    for key, one in found.streams.items():
        own = sounds.get(name, ("", 0))
        assert one.scores.shape[1] == (own[1] if key == own[0] else walked.streams[key].scores.shape[1])
    for i in range(2):
        some = {key: x[i * (n := len(x) // 2) : (i + 1) * n] for key, x in inputs.items()}
        alone = vitrail.explain(model, some, "input_x_gradient", case.target)
        for key, one in alone.streams.items():
            assert_close(found.streams[key].scores[i : i + 1], one.scores, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("method", ["gae", "input_x_gradient"])
def test_one_picture_has_the_text_of_its_class_and_several_have_none(method):
    model, _ = prepared(TABLE["siglip"])
    texts = {"input_ids": ids(3, 6), "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    pictures = torch.randn(2, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    both = vitrail.explain(model, {**texts, "pixel_values": pictures}, method, [2, 0])
    assert both.streams == {}
    assert "belong to all pictures" in str(both.provenance["assumed"])
    for i, label in enumerate((2, 0)):
        found = vitrail.explain(model, {**texts, "pixel_values": pictures[i : i + 1]}, method, label)
        assert_close(found.streams["image"].scores, both.scores[i : i + 1])
        own = {name: x[label : label + 1] for name, x in texts.items()}
        alone = vitrail.explain(model, {**own, "pixel_values": pictures[i : i + 1]}, method, 0)
        assert_close(found.streams["text"].scores, alone.streams["text"].scores)
        assert found.streams["text"].tokens == (tuple(map(str, own["input_ids"][0].tolist())),)


def test_the_text_that_a_box_of_owlvit_is_named_by_is_a_stream_of_its_own():
    model, inputs = prepared(TABLE["owlvit"])
    found = vitrail.explain(model, inputs, "gae", targets.logit(1, position=6))
    assert found.kind == "image"
    named = {"input_ids": inputs["input_ids"][1::2], "attention_mask": inputs["attention_mask"][1::2]}
    alone = vitrail.explain(model, {**inputs, **named}, "gae", targets.logit(0, position=6))
    assert found.streams["text"].tokens == tuple(tuple(map(str, row)) for row in named["input_ids"].tolist())
    for name in ("image", "text"):
        assert_close(found.streams[name].scores, alone.streams[name].scores, atol=1e-5, rtol=1e-4)
    end = named["input_ids"].argmax(dim=1, keepdim=True)  # the causal tower is read there
    later = torch.arange(5)[None] > end
    assert torch.equal(found.streams["text"].scores == 0, later)


class NamedAsInTorch(nn.Module):
    """An `nn.Transformer` whose ids have the names of its arguments."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 16), nn.Linear(16, 40)
        self.body = nn.Transformer(16, 2, 1, 1, 24, batch_first=True)

    def forward(self, src, tgt):
        return self.head(self.body(self.embed(src), self.embed(tgt)))


@pytest.mark.parametrize("method", ["auto", "input_x_gradient", "attn_lrp", "integrated_gradients", "gae"])
def test_ids_may_have_the_names_of_torch(method):
    torch.manual_seed(0)
    model = NamedAsInTorch().double().eval()
    inputs = {"src": torch.randint(0, 40, (2, 7)), "tgt": torch.randint(0, 40, (2, 5))}
    found = vitrail.explain(model, inputs, method, targets.logit(3, position=4))
    assert {name: one.scores.shape[1] for name, one in found.streams.items()} == {"encoder": 7, "decoder": 5}
    assert all(bool((one.scores != 0).any()) for one in found.streams.values())
    alone = vitrail.explain(model, {name: x[:1] for name, x in inputs.items()}, method, targets.logit(3, position=4))
    assert_close(alone.scores, found.scores[:1])


def test_a_pass_that_draws_random_numbers_is_measured_anew():
    """ViLT shuffles its patches in every pass."""
    model, inputs = prepared(TABLE["vilt"])
    maps = []
    for seed in range(3):
        torch.manual_seed(seed)
        maps.append(vitrail.explain(model, inputs, "gae", 3).streams["image"].scores)
    assert_close(maps[1], maps[0])
    assert_close(maps[2], maps[0])


def test_the_second_text_of_three_streams_is_the_decoder():
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    reader = {**vision, "vocab_size": 40, "encoder_hidden_size": 16, "cross_attention_frequency": 1}
    text = {"model_type": "t5", "vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    config = transformers.Blip2Config(
        vision_config={**vision, "image_size": 24, "patch_size": 6}, qformer_config=reader, text_config=text,
        num_query_tokens=3, image_token_index=39,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Blip2ForConditionalGeneration(config).double().eval()
    ids = torch.tensor([[39, 39, 39, 5, 6, 7]])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 3, 24, 24).double(),
        "decoder_input_ids": torch.tensor([[0, 8, 9]]),
    }
    walked = vitrail.explain(model, inputs, "gae", targets.logit(7, position=2)).streams
    assert {name: one.scores.shape[1] for name, one in walked.items()} == {
        "image": 16, "queries": 3, "text": 6, "decoder": 3,
    }  # fmt: skip
    read = vitrail.explain(model, inputs, "attn_lrp", targets.logit(7, position=2)).streams
    assert set(read) == {"image", "text", "decoder"}


def test_positions_that_leave_out_padding_are_no_words():
    """RoBERTa counts real tokens alone, so its positions are no plain count."""
    size = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 24, "max_position_embeddings": 32}  # fmt: skip
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.RobertaConfig(**size, pad_token_id=0),
        transformers.BertConfig(**size, is_decoder=True, add_cross_attention=True),
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config).double().eval()
    inputs = source_and_answer(2)
    plain = vitrail.explain(model, inputs, "gae", targets.logit(7, position=4))
    longer = {name: F.pad(inputs[name], (0, 3)) for name in ("input_ids", "attention_mask")}
    padded = vitrail.explain(model, {**inputs, **longer}, "gae", targets.logit(7, position=4))
    assert padded.streams["encoder"].tokens[0][:9] == plain.streams["encoder"].tokens[0]
    assert_close(padded.streams["encoder"].scores[:, :9], plain.streams["encoder"].scores)
    assert float(padded.streams["encoder"].scores[:, 9:].abs().max()) == 0


@pytest.mark.parametrize("name", ["xcit", "levit"])
@pytest.mark.parametrize("method", ["input_x_gradient", "attn_lrp"])
def test_a_single_picture_gets_the_scores_it_gets_in_a_batch_where_batch_norms_feed_tokens(name, method):
    """The backward pass of torch's batch norm is wrong for one sample whose gradient comes from tokens."""
    model, inputs = prepared(TABLE[name])
    for _ in range(2):  # LeViT keeps biases of attention from its first pass
        both = vitrail.explain(model, inputs, method, 3)
        alone = vitrail.explain(model, inputs[:1], method, 3)
        assert_close(alone.scores, both.scores[:1])
    pixels = inputs[:1].clone()
    step = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).double() * 1e-6
    with torch.no_grad():
        change = (model(pixels + step) - model(pixels - step))[:, 3] / 2
    plain = vitrail.explain(model, pixels, "input_x_gradient", 3).pixels
    assert plain is not None
    gradient = by_autograd(model, pixels)
    assert_close((gradient * pixels).sum(dim=1), plain)
    assert_close((gradient * step).sum(dim=(1, 2, 3)), change, rtol=1e-5, atol=1e-12)


def by_autograd(model, pixels):
    """The gradient of logit 3 at a picture that stands twice in a batch."""
    both = torch.cat([pixels, pixels]).requires_grad_()
    return torch.autograd.grad(model(both)[:, 3].sum(), both)[0][:1]


def test_one_picture_in_patches_of_two_sizes_has_one_map_of_gradients():
    model, inputs = prepared(TABLE["crossvit"], batch=1)
    walked = vitrail.explain(model, inputs, "gae", 3)
    assert list(walked.streams) == ["image", "image_2"]
    read = vitrail.explain(model, inputs, "input_x_gradient", 3)
    assert not read.streams
    assert read.grid == walked.grid


@pytest.mark.parametrize("method", ["gae", "tokentm", "attn_lrp"])
def test_pictures_of_two_sizes_in_one_batch_have_the_scores_they_have_alone(method):
    """ViLT fills smaller pictures up by any patches of their padding, some of them several times."""
    model, inputs = prepared(TABLE["vilt"])
    small = {**inputs, "pixel_mask": inputs["pixel_mask"].clone(), "pixel_values": inputs["pixel_values"].clone()}
    small["pixel_mask"][0, :, 18:] = 0
    small["pixel_values"][0, :, :, 18:] = 0
    both = vitrail.explain(model, small, method, 3)
    picture = both.streams["image"]
    assert picture.grid == (4, 4)
    assert float(picture.scores[0].view(4, 4)[:, 3:].abs().max()) == 0
    first = {name: x[:1] for name, x in small.items()}
    cut = {**first, "pixel_values": first["pixel_values"][..., :18], "pixel_mask": first["pixel_mask"][..., :18]}
    alone = vitrail.explain(model, cut, method, 3)
    assert_close(alone.streams["image"].scores.view(4, 3), picture.scores[0].view(4, 4)[:, :3])
    assert_close(alone.streams["text"].scores, both.streams["text"].scores[:1])


def test_scores_that_cancel_in_every_patch_are_said_to():
    """Pixtral norms each patch first, so that its length has no gradient."""
    case = TABLE["mistral3"]
    model, inputs = prepared(case, batch=1)
    found = vitrail.explain(model, inputs, "input_x_gradient", case.target).streams["image"]
    assert any("cancel" in text for text in found.provenance["assumed"])
    assert found.pixels is not None
    rules = vitrail.explain(model, inputs, "attn_lrp", case.target).streams["image"]
    assert not any("cancel" in text for text in rules.provenance.get("assumed", []))


def test_tokens_that_never_ask_are_explained_by_the_latents_that_read_them():
    config = transformers.PerceiverConfig(
        vocab_size=WORDS, d_model=20, d_latents=16, num_latents=5, num_self_attends_per_block=2, num_blocks=1,
        num_self_attention_heads=2, num_cross_attention_heads=2, qk_channels=16, v_channels=16,
        max_position_embeddings=16, num_labels=3, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.PerceiverForSequenceClassification(config).double().eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    words = torch.randint(1, WORDS, (2, 7))
    out = model(inputs=words, output_attentions=True)
    maps = [*out.attentions, *out.cross_attentions]
    grads = torch.autograd.grad(out.logits[:, 1].sum(), maps)
    first, second, reading, asking = (
        (x * g).clamp(min=0).mean(dim=1).detach() for x, g in zip(maps, grads, strict=True)
    )
    latents = asking + asking @ second
    expected = ((latents + latents @ first) @ reading)[:, 0]
    for name in ("inputs", "input_ids"):
        assert_close(vitrail.explain(model, {name: words}, "gae", 1).scores, expected)
