"""Models that cannot be explained: the message says what was found in them, not what others would do."""

import pytest
import torch
import transformers
from timm.models.mlp_mixer import MlpMixer
from tiny_models import MODELS
from torch import nn

import vitrail
from vitrail.errors import OptionError, SeamError

IDS = {"input_ids": torch.tensor([[1, 5, 9, 2, 4, 3]])}
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


class Linear(nn.Module):
    """Attention without a softmax."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 12), nn.Linear(12, 3)
        self.layers = nn.ModuleList([nn.ModuleList([nn.Linear(12, 12) for _ in range(3)]) for _ in range(2)])

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for q, k, v in self.layers:
            x = x + torch.relu(q(x)) @ (torch.relu(k(x)).transpose(1, 2) @ v(x))
        return self.head(x.mean(dim=1))


def mamba():
    options = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    return transformers.MambaForCausalLM(transformers.MambaConfig(**options)), "backbone.layers", IDS


def fnet():
    return transformers.FNetForSequenceClassification(transformers.FNetConfig(**SIZES)), "fnet.encoder.layer", IDS


def mixer():
    model = MlpMixer(num_classes=5, img_size=64, patch_size=32, num_blocks=2, embed_dim=16)
    return model, "blocks", torch.randn(1, 3, 64, 64)


WITHOUT = {
    mamba: "2 MambaMixer",
    fnet: "2 FNetFourierTransform",
    mixer: "2 MixerBlock",
    lambda: (Linear(), "layers", IDS): "7 Linear",
}


@pytest.mark.parametrize("build", WITHOUT)
@pytest.mark.parametrize("method", ["gae", "auto"])
def test_a_model_without_softmax_attention_is_told_so(build, method):
    model, blocks, inputs = build()
    with pytest.raises(SeamError, match="a model without softmax attention") as refusal:
        vitrail.explain(model.eval(), inputs, method, 0, anatomy=vitrail.Anatomy(blocks=blocks))
    assert WITHOUT[build] in str(refusal.value)
    assert "Load it" not in str(refusal.value)


@pytest.mark.parametrize("kernel", ["flex_attention", "flash_attention_2", "kernels-community/flash-attn"])
def test_kernels_that_hide_attention_are_named(kernel):
    model = MODELS["hf_bert"].build().eval()
    model.config._attn_implementation = kernel
    with pytest.raises(SeamError, match=f"attn_implementation='{kernel}'.*'sdpa' or 'eager'"):
        vitrail.explain(model, MODELS["hf_bert"].inputs(), "gae", 0)


def test_blocks_without_attention_are_counted_and_named():
    config = transformers.Lfm2Config(
        **{**SIZES, "num_hidden_layers": 5}, num_key_value_heads=2,
        layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
    )  # fmt: skip
    model = transformers.Lfm2ForCausalLM(config).eval()
    with pytest.raises(SeamError, match=r"in 3 of the 5 blocks of Lfm2ForCausalLM: 0-1, 3 \(3 Lfm2DecoderLayer\)"):
        vitrail.explain(model, IDS, "gae", 0, anatomy=vitrail.Anatomy(blocks="model.layers"))


def test_blocks_that_are_none_are_told_from_those_that_are():
    model = MODELS["hf_bert"].build().eval()
    model.extra = nn.ModuleList([nn.Linear(2, 2)])
    with pytest.raises(SeamError, match=r"none of the 1 blocks named.*3 attention calls.*bert\.encoder\.layer"):
        vitrail.explain(model, IDS, "gae", 0, anatomy=vitrail.Anatomy(blocks="extra"))


class Sparse(nn.Module):
    """Words become vectors by a product with one-hot rows: there is no table of embeddings."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Linear(60, 12), nn.Linear(12, 3)
        layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        x = self.words(nn.functional.one_hot(ids, 60).to(self.words.weight.dtype))
        return self.head(self.encoder(x).mean(dim=1))


def test_a_level_that_was_not_met_is_answered_by_one_that_works():
    model, ids = Sparse(), IDS["input_ids"]
    with pytest.raises(OptionError, match=r"no table of word embeddings.*Use level='embedding_output'"):
        vitrail.explain(model, ids, "input_x_gradient", 0, level="inputs_embeds")
    assert bool(vitrail.explain(model, ids, "input_x_gradient", 0, level="embedding_output").scores.any())
    with pytest.raises(OptionError, match=r"no nn\.Embedding.*Name the blocks"):
        vitrail.explain(model, ids, "gae", 0, anatomy=vitrail.Anatomy())
