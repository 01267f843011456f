"""The photo model and what it learns from its teacher.

The teacher sees every view the student sees ("function matching", Beyer et al., arXiv:2106.05237) and is matched in
its 1000-class output, its output over our ten classes, and its tokens in the middle and at the end.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

from training.vit import blocks, tokens_at
from vitrail.evaluate.data.labelled import IMAGENETTE_SYNSETS


@dataclass(frozen=True)
class PhotoConfig:
    """Everything that decides the result but the data."""

    image_size: int = 160
    patch_size: int = 10
    width: int = 256
    depth: int = 8
    heads: int = 4
    mlp_width: int = 768
    batch: int = 512
    steps: int = 10_000
    warmup: int = 500
    peak_lr: float = 1e-3
    weight_decay: float = 0.05
    clip: float = 1.0
    average: float = 0.998  # decay of the running mean of the weights, which is what ships
    smallest_crop: float = 0.2
    jitter: float = 0.4
    mixed: float = 0.75  # share of the views that are mixed with another
    calm: float = 0.15  # share of the steps, at the end, without mixing
    label_weight: float = 0.5
    token_weight: float = 1.0
    smoothing: float = 0.05
    seed: int = 0

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.image_size // self.patch_size


class Student(nn.Module):
    """The model that ships, and the projections into the teacher's tokens that do not."""

    def __init__(self, config: PhotoConfig, teacher_width: int) -> None:
        super().__init__()
        self.model = build_model(config)
        self.middle = nn.Linear(config.width, teacher_width)
        self.last = nn.Linear(config.width, teacher_width)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the ten classes, and the teacher's middle and last tokens as guessed."""
        kept, raw = tokens_at(self.model, pixels, middle=len(blocks(self.model)) // 2)
        tokens = self.model.vit.layernorm(raw)
        return self.model.classifier(tokens[:, 0]), self.middle(kept), self.last(tokens)


def build_model(config: PhotoConfig) -> ViTForImageClassification:
    """The photo model with fresh weights."""
    names = dict(enumerate(name for name, _ in IMAGENETTE_SYNSETS.values()))
    vit = ViTConfig(
        image_size=config.image_size,
        patch_size=config.patch_size,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=config.mlp_width,
        layer_norm_eps=1e-6,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    return ViTForImageClassification(vit)


def teach(teacher: nn.Module, pixels: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The teacher's logits, and its middle and last tokens brought to zero mean and unit variance."""
    large = F.interpolate(pixels, size=(size, size), mode="bicubic", align_corners=False)
    kept, raw = tokens_at(teacher, large, middle=len(blocks(teacher)) // 2)
    logits = teacher.classifier(teacher.vit.layernorm(raw[:, 0]))
    return logits, F.layer_norm(kept, raw.shape[-1:]), F.layer_norm(raw, raw.shape[-1:])


def losses(said: tuple[Tensor, ...], taught: tuple[Tensor, ...], labels: Tensor, teacher: nn.Module) -> Tensor:
    """Labels, the teacher's ten classes, its thousand classes, its middle tokens, its last tokens: five losses."""
    logits, middle, last = (x.float() for x in said)
    teacher_logits, teacher_middle, teacher_last = (x.float() for x in taught)
    ten = torch.tensor([number for _, number in IMAGENETTE_SYNSETS.values()], device=logits.device)
    log_probs = logits.log_softmax(dim=1)
    thousand = guess_thousand(last[:, 0], teacher).log_softmax(dim=1)
    return torch.stack(
        [
            -(labels * log_probs).sum(dim=1).mean(),
            F.kl_div(log_probs, teacher_logits[:, ten].log_softmax(dim=1), reduction="batchmean", log_target=True),
            F.kl_div(thousand, teacher_logits.log_softmax(dim=1), reduction="batchmean", log_target=True),
            F.mse_loss(middle, teacher_middle),
            F.mse_loss(last, teacher_last),
        ]
    )


def guess_thousand(cls: Tensor, teacher: nn.Module) -> Tensor:
    """The teacher's classifier on the student's guess of its last CLS token, normalised as `teach` gives it."""
    norm, head = teacher.vit.layernorm, teacher.classifier
    return F.linear(cls * norm.weight.float() + norm.bias.float(), head.weight.float(), head.bias.float())
