"""Ways in which a map could be wrong without a word: each is right, or refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from wrapped_models import CASES, build, inputs_of

import vitrail
from vitrail import targets
from vitrail.errors import OptionError, RuleError, SeamError, VitrailError

IDS = torch.tensor([[3, 7, 1, 9, 4], [2, 8, 5, 6, 0]])


class Block(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        self.norm, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o, self.up = (nn.Linear(16, 16) for _ in range(5))
        self.change, self.causal = change, False

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        h = self.up(self.second(x))
        return x + (h if self.change is None else self.change(h))


class Model(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        torch.manual_seed(4)
        self.words, self.layers = nn.Embedding(12, 16), nn.ModuleList([Block(change) for _ in range(2)])
        self.gate, self.head = nn.Parameter(torch.zeros(1)), nn.Linear(16, 3)

    def forward(self, input_ids):
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
            x = (1 - self.gate) * x + self.gate * x.flip(1)
        return self.head(x[:, 0])


@torch.no_grad()
def in_place(model):
    model.gate.fill_(1.0)


def by_data(model):
    model.gate.data.fill_(1.0)


def other_data(model):
    model.gate.data = torch.ones_like(model.gate.data)


def other_parameter(model):
    model.gate = nn.Parameter(torch.ones_like(model.gate))


def assigned(model):
    state = {name: x.detach().clone() for name, x in model.state_dict().items()}
    model.load_state_dict({**state, "gate": torch.ones_like(model.gate)}, assign=True)


def as_buffer(model):
    del model.gate
    model.register_buffer("gate", torch.zeros(1, dtype=torch.float64))
    return model


def as_attribute(model):
    del model.gate
    model.gate = torch.zeros(1, dtype=torch.float64)
    return model


@pytest.mark.parametrize(
    ("make", "change"),
    [(lambda m: m, change) for change in (in_place, by_data, other_data, other_parameter, assigned)]
    + [(make, change) for make in (as_buffer, as_attribute) for change in (in_place, by_data)],
)
def test_a_gate_that_opens_after_the_first_call_is_seen(make, change):
    """What is remembered of a model was once kept where torch counts no write: `.data`, buffers, new parameters."""
    model = make(Model().double().eval())
    vitrail.explain(model, IDS, "gae", 1)
    change(model)
    for one in (model, copy.deepcopy(model)):
        with pytest.raises(SeamError):
            vitrail.explain(one, IDS, "gae", 1)


class TwoTokens(Model):
    """Reads a second token where the gate is open."""

    def forward(self, input_ids):
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0] + self.gate * x[:, 3])


@pytest.mark.parametrize("change", [in_place, by_data])
@pytest.mark.parametrize("method", ["gae", "rollout", "auto"])
def test_a_head_that_reads_another_token_after_the_first_call_is_seen(change, method):
    model = TwoTokens().double().eval()
    vitrail.explain(model, IDS, method, 1)
    change(model)
    found, wanted = (vitrail.explain(one, IDS, method, 1) for one in (model, copy.deepcopy(model)))
    assert_close(found.scores, wanted.scores)
    assert found.method == wanted.method


class Keeping(Block):
    """A block that adds to its values what an earlier one left in a dictionary."""

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        v = v + 2 * self.kept["values"] if "values" in self.kept else self.kept.setdefault("values", v)
        return x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Shared(Model):
    def __init__(self):
        super().__init__()
        self.layers, self.kept = nn.ModuleList([Keeping() for _ in range(2)]), {}
        for layer in self.layers:
            layer.kept = self.kept

    def forward(self, input_ids):
        x = self.words(input_ids)
        self.layers[0].kept.clear()
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class ByLength(Model):
    """A causal model that does something else with a long text."""

    def __init__(self, before, between):
        super().__init__()
        self.before, self.between, self.head = before, between, nn.Linear(16, 12)
        for layer in self.layers:
            layer.causal = True

    def forward(self, input_ids):
        x, long = self.words(input_ids), input_ids.shape[1] > 400
        x = self.before(x) if long else x
        first, second = self.layers
        x = first(x)
        return self.head(second(self.between(x) if long else x))


def test_a_model_that_moves_the_tokens_of_long_texts_alone_is_seen():
    """The structure of a long causal text is measured on a part of it, where nothing moves."""
    ids = torch.randint(12, (1, 520), generator=torch.Generator().manual_seed(0))
    plain, moved = ByLength(nn.Identity(), nn.Identity()), ByLength(lambda x: x.flip(1), nn.Identity())
    found, wanted = (vitrail.explain(model.double().eval(), ids, "rollout", 1) for model in (moved, plain))
    assert "measured on 256" in str(wanted.provenance["assumed"])
    turned = vitrail.explain(plain, ids.flip(1), "rollout", 1).scores.flip(1)
    assert_close(found.scores, turned)
    with pytest.raises(SeamError, match="another order"):
        vitrail.explain(ByLength(nn.Identity(), lambda x: x.roll(1, 1)).double().eval(), ids, "gae", 1)


class LongSkip(Model):
    """Its head reads a token of the first block beside the first token of the last one."""

    def __init__(self, token):
        super().__init__()
        self.token = token

    def forward(self, input_ids):
        x = self.words(input_ids)
        states = [x := layer(x) for layer in self.layers]
        return self.head(x[:, 0] + states[0][:, self.token])


@pytest.mark.parametrize("method", ["gae", "rollout", "tokentm", "attcat"])
def test_a_token_that_is_read_past_later_blocks_is_not_left_out(method):
    """A walk from the last block alone would never meet it."""
    with pytest.raises(SeamError, match=r"reads 1 tokens after block 0 beside the 1 it reads after block 1"):
        vitrail.explain(LongSkip(token=3).double().eval(), IDS, method, 1)
    assert bool(vitrail.explain(LongSkip(token=0).double().eval(), IDS, method, 1).scores.any())


def test_gradients_at_the_inputs_meet_a_token_that_is_read_past_later_blocks():
    model = LongSkip(token=3).double().eval()
    found = vitrail.explain(model, IDS, "input_x_gradient", 1)
    words = model.words(IDS).detach().requires_grad_()
    model.words.register_forward_hook(lambda *_: words)
    (gradient,) = torch.autograd.grad(model(IDS)[:, 1].sum(), words)
    assert_close(found.scores, (words * gradient).sum(dim=2).detach())


def test_blocks_that_share_a_tensor_beside_the_stream_are_not_run_again_one_by_one():
    model = Shared().double().eval()
    with pytest.raises(VitrailError, match="beside the stream"):
        vitrail.explain(model, IDS, "gae", 1, memory="low")


def written(h):
    h = h.clone()
    h[..., :8].mul_(torch.sigmoid(h[..., 8:]))
    return h


def subtracted(h):
    h = h.clone()
    part = h[..., :8]
    part.sub_(torch.sigmoid(h[..., 8:]))
    return h


def made_new(h):
    return torch.cat([h[..., :8] * torch.sigmoid(h[..., 8:]), h[..., 8:]], dim=-1)


@pytest.mark.parametrize("change", [written, subtracted])
@pytest.mark.parametrize("method", ["attn_lrp", "conservative_lrp"])
def test_a_write_into_a_view_is_refused_by_rules(change, method):
    with pytest.raises(RuleError, match="changed in place"):
        vitrail.explain(Model(change).double().eval(), IDS, method, 1)
    assert vitrail.explain(Model(made_new).double().eval(), IDS, method, 1).scores.isfinite().all()


def test_the_mask_of_the_encoder_is_not_that_of_the_decoder():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).double().eval()
    source, answer = torch.randint(3, 60, (2, 1, 6)).unbind()
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": answer}
    found = vitrail.explain(model, given, "input_x_gradient", targets.next_token(5))
    words = [model.shared(ids).detach().requires_grad_() for ids in (source, answer)]
    logits = model(inputs_embeds=words[0], attention_mask=mask, decoder_inputs_embeds=words[1]).logits
    wanted = [(x * g).sum(dim=-1) for x, g in zip(words, torch.autograd.grad(logits[0, -1, 5], words), strict=True)]
    assert_close(found.streams["encoder"].scores.double(), wanted[0].detach())
    assert_close(found.streams["decoder"].scores.double(), wanted[1].detach())


# The level that was asked for


@pytest.mark.parametrize("method", ["attn_lrp", "conservative_lrp", "input_x_gradient", "integrated_gradients"])
def test_a_level_that_cannot_be_met_is_refused_and_the_one_that_is_read_is_said(method):
    """The options once said embedding_output of a map that was read at the pixels."""
    model, inputs = CASES["one_block"].model("vit"), inputs_of("vit")
    given = {"steps": 2} if method == "integrated_gradients" else {}
    with pytest.raises(OptionError, match=r"cannot be read at level='embedding_output'.*should attend once.*'pixels'"):
        vitrail.explain(model, inputs, method, 1, level="embedding_output", **given)
    found = vitrail.explain(model, inputs, method, 1, **given)
    assert found.options["level"] == "pixels"
    twin = CASES["one_block"].twin(build("vit"))
    wanted = vitrail.explain(twin, inputs, method, 1, level="pixels", **given)
    named = vitrail.explain(model, inputs, method, 1, level="pixels", **given)
    for one in (found, named):
        assert_close(one.pixels, wanted.pixels, rtol=1e-12, atol=1e-18)
        assert_close(one.scores, wanted.scores, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("method", ["ifr", "flashtrace"])
def test_a_short_text_in_long_padding_is_explained_as_without_it(method):
    """All tokens that were looked at were padding, and the largest of no number was asked for."""
    model, length, real = build("llama"), 801, torch.tensor([[7, 9]])
    model.config.max_position_embeddings = length
    padding = torch.zeros(1, length - 2, dtype=torch.long)
    ids, mask = torch.cat([padding, real], dim=1), torch.cat([padding, torch.ones_like(real)], dim=1)
    found = vitrail.explain(model, {"input_ids": ids, "attention_mask": mask}, method).scores
    wanted = vitrail.explain(model, {"input_ids": real, "attention_mask": torch.ones_like(real)}, method).scores
    assert_close(found[:, -2:], wanted, rtol=1e-5, atol=0)  # rotary angles of late places are in single precision
    assert not bool(found[:, :-2].any())


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", ["gae", "attn_lrp", "tokentm", "auto"])
def test_a_model_of_no_known_family_is_explained_where_the_caller_has_gradients_off(around, method):
    """Parts are found by gradients: these were once taken in the caller's own setting."""
    for model, inputs in [(Model().double().eval(), IDS), (build("llama"), inputs_of("llama"))]:
        expected = vitrail.explain(copy.deepcopy(model), inputs, method, 1).scores
        with around():
            found = vitrail.explain(model, inputs, method, 1).scores
        assert_close(found, expected)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_single_token_of_a_language_model_is_explained(name):
    """Its attention does not show that it is causal."""
    ids = torch.tensor([[5], [7]])
    found = vitrail.explain(build(name), {"input_ids": ids}, "gae", 1)
    assert found.scores.shape == (2, 1)
    named = vitrail.explain(build(name), {"input_ids": ids}, "gae", targets.logit(1, position=0))
    assert_close(found.scores, named.scores)


class EarlyState(nn.Module):
    """Reads a token of an early hidden state, as the model keeps it itself."""

    def __init__(self, *reads):
        super().__init__()
        self.inner, self.reads = build("bert"), reads

    def forward(self, input_ids):
        states = self.inner(input_ids, output_hidden_states=True).hidden_states
        return self.inner.classifier(sum(states[layer][:, token] for layer, token in self.reads))


def test_a_hidden_state_that_is_read_early_is_the_last_one_that_counts():
    ids = inputs_of("bert")["input_ids"]
    found = vitrail.explain(EarlyState((1, 0)), {"input_ids": ids}, "gae", 1)
    model = build("bert")
    model.set_attn_implementation("eager")
    out = model(ids, output_attentions=True, output_hidden_states=True)
    probs = out.attentions[0]
    (gradient,) = torch.autograd.grad(model.classifier(out.hidden_states[1][:, 0])[:, 1].sum(), probs)
    walked = (gradient * probs).clamp(min=0).mean(dim=1)[:, 0].detach()
    walked[:, 0] += 1
    assert_close(found.scores, walked)
    with pytest.raises(SeamError, match="before block 0 beside"):
        vitrail.explain(EarlyState((1, 0), (0, 3)), {"input_ids": ids}, "gae", 1)
