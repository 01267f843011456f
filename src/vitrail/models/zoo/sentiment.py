"""Sentences for the sentiment model: tokens of its own vocabulary, never cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.errors import InputError
from vitrail.models.texts import check_text
from vitrail.models.zoo.files import read_checked
from vitrail.models.zoo.wordpieces import WordPieces

if TYPE_CHECKING:
    from transformers import BatchEncoding, BertTokenizer

    from vitrail.models.zoo.wordpieces import TextBatch


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
    """Refuse what is no text or says nothing."""
    if not texts:
        raise InputError("there is no sentence: the list is empty.")
    for number, text in enumerate(texts):
        check_text(text, f"sentence {number}")


def make_tokeniser(limit: int) -> Tokenise:
    """The tokeniser made from the shipped vocabulary."""
    lines = read_checked("sentiment/vocab.txt").decode("utf-8").splitlines()
    vocabulary = {piece: number for number, piece in enumerate(lines)}
    return Tokenise(WordPieces(vocabulary, limit), limit)
