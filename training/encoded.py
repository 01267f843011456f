"""Token ids of texts or pairs of texts with what is to be learned from them, padded into batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from training.sentences import Sentences, ordered_batches, shuffled_batches


@dataclass(frozen=True)
class Encoded:
    """Inputs of different lengths.

    Args:
        types: which text of a pair each token is of; none for models that do not ask.
        targets: the arguments of the model that make it return a loss.
        padding: the token id that fills the short ones up.
    """

    ids: list[list[int]]
    types: list[list[int]] | None
    targets: dict[str, Tensor]  # int64 [n] each
    padding: int

    def __len__(self) -> int:
        return len(self.ids)


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: list[str], labels: list[int], *, longest: int) -> Encoded:
    """Texts and their classes, cut to `longest` tokens."""
    found = tokenizer(texts, truncation=True, max_length=longest)
    targets = {"labels": torch.tensor(labels, dtype=torch.long)}
    return Encoded(found["input_ids"], found.get("token_type_ids"), targets, tokenizer.pad_token_id)


def random_order(encoded: Encoded, size: int, seed: int) -> list[list[int]]:
    """The inputs' numbers in random batches, each of like lengths."""
    return shuffled_batches(_lengths(encoded), size, seed)


def short_first(encoded: Encoded, size: int) -> Iterator[list[int]]:
    """The inputs' numbers in batches, shortest first."""
    return ordered_batches(_lengths(encoded), size)


def collate(encoded: Encoded, numbers: list[int], device: str, *, learn: bool) -> dict[str, Tensor]:
    """Some inputs as the model takes them, padded to the longest of them.

    Args:
        learn: with the targets, so that the model returns its loss.
    """
    longest = max(len(encoded.ids[n]) for n in numbers)
    mask = [[1] * len(encoded.ids[n]) for n in numbers]
    batch = {
        "input_ids": _padded([encoded.ids[n] for n in numbers], longest, encoded.padding),
        "attention_mask": _padded(mask, longest, 0),
    }
    if encoded.types is not None:
        batch["token_type_ids"] = _padded([encoded.types[n] for n in numbers], longest, 0)
    if learn:
        batch |= {name: target[numbers] for name, target in encoded.targets.items()}
    return {name: values.to(device, non_blocking=True) for name, values in batch.items()}


def _padded(rows: list[list[int]], longest: int, filling: int) -> Tensor:
    return torch.tensor([row + [filling] * (longest - len(row)) for row in rows])


def _lengths(encoded: Encoded) -> Sentences:
    return Sentences(encoded.ids, torch.zeros(len(encoded), dtype=torch.long))
