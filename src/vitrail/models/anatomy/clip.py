"""CLIP as a model of texts: the text tower, whose classes are pictures."""

from torch import Tensor, nn

from vitrail.models.anatomy.parts import Anatomy

TEXT = Anatomy(
    blocks="text_model.encoder.layers",
    output="self_attn.out_proj",
    value_bias="self_attn.v_proj.bias",
    attention_norm="layer_norm1",
    ffn_norm="layer_norm2",
    ffn_input="mlp",
    ffn_output="mlp",
    prefix=1,
    temperature="logit_scale",
    root="clip",
    name="the text tower of CLIP",
)
"""The readout is measured: the end token, wherever each text has it."""


class TextTower(nn.Module):
    """A Hugging Face `CLIPModel` whose inputs are texts, each compared with the same pictures: a class is a picture."""

    def __init__(self, clip: nn.Module, pixel_values: Tensor) -> None:
        """Take a model and the pictures `[n, 3, h, w]` its texts are compared with."""
        super().__init__()
        self.clip = clip
        self.register_buffer("pictures", pixel_values)
        self.train(clip.training)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """One logit per text and picture."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self.clip(**given, pixel_values=self.pictures).logits_per_text


def text_anatomy(model: nn.Module) -> Anatomy | None:
    """The anatomy of a text tower."""
    return TEXT if isinstance(model, TextTower) else None
