"""Models around `nn.TransformerEncoder`: their prefix and readout are measured."""

from dataclasses import replace

from torch import nn

from vitrail.models.anatomy.parts import Anatomy

POST_NORM = Anatomy(
    blocks="layers",
    output="self_attn.out_proj",
    value_bias="self_attn.in_proj_bias",
    ffn_input="linear1",
    ffn_output="linear2",
    name="nn.TransformerEncoder",
)
PRE_NORM = replace(POST_NORM, attention_norm="norm1", ffn_norm="norm2")


def encoder_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of the first `nn.TransformerEncoder` inside the model."""
    for path, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder):
            pre_norm = all(getattr(layer, "norm_first", False) for layer in module.layers)
            return replace(PRE_NORM if pre_norm else POST_NORM, root=path)
    return None
