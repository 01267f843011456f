"""Texts for the embedded models: the tokenizer of the sentiment model, and the language of the lookup model.

The sentiment model's tokenizer is written without transformers, which takes longer to import than a text to explain. It
cuts texts as transformers' `BertTokenizer` of the same vocabulary does (a test compares them). Other methods of a
tokenizer are passed on to that one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.errors import InputError, ModelError
from vitrail.models.texts import check_text
from vitrail.models.zoo.files import read_checked, read_json

if TYPE_CHECKING:
    from transformers import BatchEncoding, BertTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast


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
    bos_token_id = eos_token_id = None

    def __init__(self, vocabulary: Mapping[str, int], limit: int) -> None:
        from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

        self.vocabulary, self.limit = dict(vocabulary), limit
        self.cutter = BertWordPieceTokenizer(self.vocabulary, lowercase=True)
        self.pad_token_id, self.unk_token_id, self.mask_token_id, self.cls_token_id, self.sep_token_id = (
            self.vocabulary[MARKS[name]] for name in ("pad", "unk", "mask", "cls", "sep")
        )
        self.all_special_ids = [self.vocabulary[mark] for mark in MARKS.values()]

    @cached_property
    def full(self) -> Any:  # noqa: ANN401
        """The same as a tokenizer of transformers."""
        from transformers import BertTokenizer

        return BertTokenizer(vocab=self.vocabulary, model_max_length=self.limit)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return an attribute that only the tokenizer of transformers has."""
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


@dataclass(frozen=True)
class Tokenise:
    """Turn sentences into the model's input."""

    tokenizer: "WordPieces | BertTokenizer"
    limit: int

    def __call__(self, sentences: str | Sequence[str]) -> "TextBatch | BatchEncoding":
        """Token ids and attention mask of one or several sentences, padded to the longest."""
        if not isinstance(sentences, (str, list, tuple)):
            kind = type(sentences).__name__
            raise InputError(f"the sentiment model reads a text or a list of texts, not {kind}.")
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        check_texts(texts)
        batch = self.tokenizer(texts, padding=True, return_tensors="pt", verbose=False)
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        for text, length in zip(texts, lengths, strict=True):
            if length > self.limit:
                raise InputError(
                    f"the text {text[:40]!r}… has {length} tokens, but the sentiment model reads at most {self.limit}. "
                    "It is not cut: shorten it, or explain it sentence by sentence."
                )
        return batch


def check_texts(texts: Sequence[object]) -> None:
    """Raise for what is no text, or is empty."""
    if not texts:
        raise InputError("there is no sentence: the list is empty.")
    for number, text in enumerate(texts):
        check_text(text, f"sentence {number}")


def make_tokeniser(limit: int) -> Tokenise:
    """The tokeniser made from the shipped vocabulary."""
    lines = read_checked("sentiment/vocab.txt").decode("utf-8").splitlines()
    vocabulary = {piece: number for number, piece in enumerate(lines)}
    return Tokenise(WordPieces(vocabulary, limit), limit)


END, UNKNOWN = "<end>", "<unknown>"


@dataclass(frozen=True)
class ReadWords:
    """Turn texts such as `Anna: ring. Boris: key. Anna:` into the model's input."""

    tokenizer: "PreTrainedTokenizerFast"

    def __call__(self, texts: str | Sequence[str]) -> "BatchEncoding":
        """Token ids and attention mask of one or several texts, padded on the left to the longest."""
        given = [texts] if isinstance(texts, str) else list(texts)
        check_texts(given)
        known = self.tokenizer.get_vocab()
        for text in given:
            if strange := next((word for word in text.split() if word not in known), None):
                raise InputError(
                    f"the lookup model does not know the word {strange!r}. Its language are sentences such as "
                    "'Anna: ring. Boris: key.' and a question 'Anna:'; its words are in tokenizer.get_vocab()."
                )
        return self.tokenizer(given, padding=True, return_tensors="pt")


def build_lookup() -> "LlamaForCausalLM":
    """The model with the shipped weights, every one of them and no other, in single precision."""
    from safetensors.torch import load as parse
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig.from_dict(read_json("lookup/config.json")))
    weights = parse(read_checked("lookup/model.safetensors"))
    missing, unknown = model.load_state_dict({name: x.float() for name, x in weights.items()}, strict=False)
    if missing or unknown:
        raise ModelError(
            f"the weights of 'lookup' do not fit this version of transformers: missing {missing}, unknown {unknown}."
        )
    return model.eval()


def make_reader(limit: int) -> ReadWords:
    """The reader made from the shipped vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    lines = read_checked("lookup/vocab.txt").decode("utf-8").splitlines()
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(lines)}, unk_token=UNKNOWN))
    words.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return ReadWords(
        PreTrainedTokenizerFast(
            tokenizer_object=words, unk_token=UNKNOWN, eos_token=END, pad_token=END, padding_side="left",
            model_max_length=limit,
        )
    )  # fmt: skip
