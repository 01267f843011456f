"""The sentiment model's tokenizer without transformers, which takes longer to import than a text to explain.

It cuts texts as transformers' `BertTokenizer` of the same vocabulary does (a test compares them). Whatever else is
asked of it, that one answers.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

MARKS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


class TextBatch(dict[str, Tensor]):
    """The tensors of some texts, and the encodings they were made of."""

    is_fast = True

    def __init__(self, tensors: Mapping[str, Tensor], encodings: Sequence[Any]) -> None:
        super().__init__(tensors)
        self.encodings = encodings

    def __getattr__(self, name: str) -> Tensor:
        """A tensor by its name."""
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def tokens(self, index: int = 0) -> list[str]:
        """The pieces of one text."""
        return self.encodings[index].tokens

    def to(self, device: torch.device | str) -> "TextBatch":
        """The same on another device."""
        return TextBatch({name: x.to(device) for name, x in self.items()}, self.encodings)


class WordPieces:
    """Texts as word pieces of a vocabulary."""

    is_fast, padding_side = True, "right"
    pad_token, unk_token, mask_token = MARKS["pad"], MARKS["unk"], MARKS["mask"]
    eos_token_id = None

    def __init__(self, vocabulary: Mapping[str, int], limit: int) -> None:
        from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

        self.vocabulary, self.limit = dict(vocabulary), limit
        self.cutter = BertWordPieceTokenizer(self.vocabulary, lowercase=True)
        self.pad_token_id, self.unk_token_id, self.mask_token_id = (
            self.vocabulary[MARKS[name]] for name in ("pad", "unk", "mask")
        )
        self.all_special_ids = [self.vocabulary[mark] for mark in MARKS.values()]

    @cached_property
    def full(self) -> Any:  # noqa: ANN401
        """The same as a tokenizer of transformers."""
        from transformers import BertTokenizer

        return BertTokenizer(vocab=self.vocabulary, model_max_length=self.limit)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """What only the tokenizer of transformers has."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.full, name)

    def __call__(self, text: Any, text_pair: Any = None, **more: Any) -> Any:  # noqa: ANN401
        """The texts as tensors; options that are not of the simplest kind are those of transformers."""
        if more.get("return_tensors") != "pt" or not set(more) <= SIMPLE or not isinstance(more.get("padding"), BOOLS):
            return self.full(text, text_pair, **more)
        texts = [text] if isinstance(text, str) else list(text)
        if text_pair is None:
            found = self.cutter.encode_batch(texts)
        else:
            pairs = [text_pair] if isinstance(text_pair, str) else list(text_pair)
            found = self.cutter.encode_batch(list(zip(texts, pairs, strict=True)))
        if not more.get("padding") and len({len(one) for one in found}) > 1:
            return self.full(text, text_pair, **more)  # which says what is wrong
        for one in found:
            one.pad(max(map(len, found)), pad_id=self.pad_token_id, pad_token=self.pad_token)
        names = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
        if more.get("return_special_tokens_mask"):
            names["special_tokens_mask"] = "special_tokens_mask"
        tensors = {name: torch.tensor([getattr(one, kind) for one in found]) for name, kind in names.items()}
        return TextBatch(tensors, found)


SIMPLE = {"return_tensors", "padding", "return_special_tokens_mask", "verbose"}
BOOLS = (bool, type(None))
