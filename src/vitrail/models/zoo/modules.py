"""The two embedded models as plain torch modules.

Their parameters carry the names of Hugging Face checkpoints, so the shipped weights also load into transformers'
`ViTForImageClassification` and `BertForSequenceClassification`, which give the same logits (a test compares them).
They are written here because importing transformers takes longer than importing torch and explaining a picture.
Methods that widen the batch at one block make the batch axis of a module's output another than that of its input, so
the annotations leave it open.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.errors import InputError


class Config(SimpleNamespace):
    """The configuration that a model was built from, under the names of Hugging Face configs."""

    @property
    def num_labels(self) -> int:
        """The number of classes."""
        return len(self.id2label)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain Python objects."""
        return dict(vars(self))

    @classmethod
    def of(cls, table: dict[str, Any], *, name: str) -> "Config":
        """The config of a shipped JSON file."""
        labels = {int(number): label for number, label in table["id2label"].items()}
        return cls(**{**table, "id2label": labels, "name_or_path": f"vitrail.models.zoo:{name}"})


class Logits(NamedTuple):
    """The output of a model."""

    logits: Float[Tensor, "_ v"]


class Attend(nn.Module):
    """Queries, keys and values of several heads, and softmax attention over them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        width = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Float[Tensor, "_ t d"], mask: Bool[Tensor, "_ 1 1 t"] | None = None) -> Float[Tensor, "_ t d"]:
        """The heads' outputs side by side."""
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class Dense(nn.Module):
    """A linear layer under the name `dense`, and the activation that follows it."""

    def __init__(self, width: int, out: int, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(width, out)
        self.activation = activation or nn.Identity()

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """The layer, then the activation."""
        return self.activation(self.dense(x))


class AddAndNorm(nn.Module):
    """A linear layer whose output is added to the stream, which is then normalised (BERT)."""

    def __init__(self, width: int, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Float[Tensor, "_ t e"], stream: Float[Tensor, "_ t d"]) -> Float[Tensor, "_ t d"]:
        """The normalised sum."""
        return self.LayerNorm(self.dropout(self.dense(x)) + stream)


# --- the ViT ---------------------------------------------------------------------------------------------------------


class Patches(nn.Module):
    """One vector for each patch of a picture."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size = config.image_size
        self.projection = nn.Conv2d(3, config.hidden_size, config.patch_size, stride=config.patch_size)

    def forward(self, pixels: Float[Tensor, "_ 3 h w"]) -> Float[Tensor, "_ n d"]:
        """The patches row by row."""
        if pixels.shape[1:] != (3, self.size, self.size):
            raise InputError(
                f"the photo model takes pictures [b, 3, {self.size}, {self.size}], but these have the shape "
                f"{list(pixels.shape)}. Its preprocess makes them from any picture."
            )
        return self.projection(pixels).flatten(2).transpose(1, 2)


class PictureTokens(nn.Module):
    """The class token, then the patches, each with its position."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        count = (config.image_size // config.patch_size) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.position_embeddings = nn.Parameter(torch.zeros(1, 1 + count, config.hidden_size))
        self.patch_embeddings = Patches(config)

    def forward(self, pixels: Float[Tensor, "_ 3 h w"]) -> Float[Tensor, "_ t d"]:
        """The tokens of the pictures."""
        patches = self.patch_embeddings(pixels)
        return torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.position_embeddings


class PictureAttention(nn.Module):
    """Attention and its output projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attend(config)
        self.output = Dense(config.hidden_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "_ t d"]) -> Float[Tensor, "_ t d"]:
        """Return the update of the tokens by attention to one another."""
        return self.output(self.attention(x))


class PictureBlock(nn.Module):
    """A block that normalises before attention and before the feed-forward layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = PictureAttention(config)
        self.intermediate = Dense(config.hidden_size, config.intermediate_size, nn.GELU())
        self.output = Dense(config.intermediate_size, config.hidden_size)
        self.layernorm_before = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layernorm_after = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Float[Tensor, "_ t d"]) -> Float[Tensor, "_ t d"]:
        """The stream after the block."""
        x = x + self.attention(self.layernorm_before(x))
        return x + self.output(self.intermediate(self.layernorm_after(x)))


class PictureEncoder(nn.Module):
    """Tokens, blocks, and a last normalisation."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embeddings = PictureTokens(config)
        self.encoder = Stack([PictureBlock(config) for _ in range(config.num_hidden_layers)])
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, pixels: Float[Tensor, "_ 3 h w"]) -> Float[Tensor, "_ t d"]:
        """The tokens after all blocks."""
        return self.layernorm(self.encoder(self.embeddings(pixels.to(self.layernorm.weight.dtype))))


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.layer = nn.ModuleList(blocks)

    def forward(self, x: Float[Tensor, "_ t d"], *rest: Tensor | None) -> Float[Tensor, "_ t d"]:
        """The stream after the last block."""
        for block in self.layer:
            x = block(x, *rest)
        return x


class ViTForImageClassification(nn.Module):
    """A Vision Transformer whose class token is read by a linear layer."""

    main_input_name = "pixel_values"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.vit = PictureEncoder(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pixel_values: Float[Tensor, "_ 3 h w"]) -> Logits:
        """The logits of the classes."""
        return Logits(self.classifier(self.vit(pixel_values)[:, 0]))


# --- the BERT --------------------------------------------------------------------------------------------------------


def _table(rows: int, width: int, *, padding: int | None = None) -> nn.Embedding:
    """Embeddings that are not drawn at random: on the meta device that would import the compiler of torch."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False, padding_idx=padding)


class TextTokens(nn.Module):
    """The word pieces with their positions and segments, normalised."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = _table(config.vocab_size, width, padding=config.pad_token_id)
        self.position_embeddings = _table(config.max_position_embeddings, width)
        self.token_type_embeddings = _table(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: Float[Tensor, "_ t d"], segments: Int[Tensor, "_ t"]) -> Float[Tensor, "_ t d"]:
        """The tokens, from the embeddings of their words."""
        positions = torch.arange(words.shape[1], device=words.device)
        added = words + self.token_type_embeddings(segments) + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(added))


class TextAttention(nn.Module):
    """Attention, its output projection, and the normalised sum."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self = Attend(config)
        self.output = AddAndNorm(config.hidden_size, config)

    def forward(self, x: Float[Tensor, "_ t d"], mask: Bool[Tensor, "_ 1 1 t"] | None) -> Float[Tensor, "_ t d"]:
        """The stream after attention."""
        return self.output(self.self(x, mask), x)


class TextBlock(nn.Module):
    """A block that normalises after attention and after the feed-forward layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = TextAttention(config)
        self.intermediate = Dense(config.hidden_size, config.intermediate_size, nn.GELU())
        self.output = AddAndNorm(config.intermediate_size, config)

    def forward(self, x: Float[Tensor, "_ t d"], mask: Bool[Tensor, "_ 1 1 t"] | None) -> Float[Tensor, "_ t d"]:
        """The stream after the block."""
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class TextEncoder(nn.Module):
    """Tokens, blocks, and a layer on the first token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embeddings = TextTokens(config)
        self.encoder = Stack([TextBlock(config) for _ in range(config.num_hidden_layers)])
        self.pooler = Dense(config.hidden_size, config.hidden_size, nn.Tanh())

    def forward(
        self, words: Float[Tensor, "_ t d"], segments: Int[Tensor, "_ t"], mask: Bool[Tensor, "_ 1 1 t"] | None
    ) -> Float[Tensor, "_ d"]:
        """The first token after all blocks and the layer on it."""
        return self.pooler(self.encoder(self.embeddings(words, segments), mask)[:, 0])


class BertForSequenceClassification(nn.Module):
    """A BERT whose first token is read by a linear layer."""

    main_input_name = "input_ids"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.bert = TextEncoder(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of word pieces."""
        return self.bert.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Int[Tensor, "_ t"] | None = None,
        attention_mask: Int[Tensor, "_ t"] | None = None,
        token_type_ids: Int[Tensor, "_ t"] | None = None,
        inputs_embeds: Float[Tensor, "_ t d"] | None = None,
    ) -> Logits:
        """The logits of the classes, from the ids of the pieces or from their embeddings."""
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("the sentiment model takes input_ids or inputs_embeds, one of the two.")
        words = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if words.shape[1] > self.config.max_position_embeddings:
            raise InputError(
                f"the text has {words.shape[1]} tokens, but the sentiment model reads at most "
                f"{self.config.max_position_embeddings}."
            )
        segments = torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None]
        read = self.bert(words, segments if token_type_ids is None else token_type_ids, mask)
        return Logits(self.classifier(self.dropout(read)))
