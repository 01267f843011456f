"""Models trained here whose answer is known to depend on one token: the walk finds it, chance does not."""

import pytest
import torch
import torch.nn.functional as F
import transformers

import vitrail
from vitrail import targets

CASES, CLASSES = 200, 5


def unmixed(model, name):
    """The model whose attention layers of this name add nothing: then a patch is known by itself alone."""
    for path, module in model.named_modules():
        if name in path and path.endswith("self_attn.out_proj"):
            for x in module.parameters():
                torch.nn.init.zeros_(x).requires_grad_(False)  # noqa: FBT003
    return model


def trained(model, batches, steps):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam([x for x in model.parameters() if x.requires_grad], lr=3e-3)
    for _ in range(steps):
        inputs, _, answer = batches(64)
        loss = F.cross_entropy(model(**inputs).logits[:, -1], answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def share_found(model, batches, stream):
    """How often the planted token has the largest score, among the cases that the model answers right."""
    torch.manual_seed(1)
    inputs, place, answer = batches(CASES)
    with torch.no_grad():
        right = model(**inputs).logits[:, -1].argmax(dim=1) == answer
    assert float(right.float().mean()) > 0.95
    found = vitrail.explain(model, inputs, "gae", targets.next_token(answer))
    first = found.streams[stream].shown.argmax(dim=1)
    return float((first == place)[right].float().mean())


def pictures(count):
    """Four patches with one of five patterns each; the question asks for the pattern of one patch."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(CLASSES, 3, 4, 4, generator=generator)
    place, kinds = torch.randint(0, 4, (count,)), torch.randint(0, CLASSES, (count, 4))
    image = patterns[kinds].view(count, 2, 2, 3, 4, 4).permute(0, 3, 1, 4, 2, 5).reshape(count, 3, 8, 8)
    ids = torch.cat([torch.tensor([[3, *[29] * 4]]).expand(count, -1), 20 + place[:, None]], dim=1)
    answer = kinds[torch.arange(count), place] + 4
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": image}, place, answer


@pytest.mark.slow
def test_a_vision_language_model_names_the_patch():
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **small, "image_size": 8, "patch_size": 4},
        text_config={"model_type": "llama", **small, "vocab_size": 30, "num_key_value_heads": 2},
        image_token_index=29,
        vision_feature_layer=-1,
    )
    model = trained(unmixed(transformers.LlavaForConditionalGeneration(config), "vision"), pictures, steps=300)
    assert share_found(model, pictures, "image") >= 0.95
