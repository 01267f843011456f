"""The lookup model and its small language, one token for each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.errors import InputError, ModelError
from vitrail.models.zoo.files import read_checked, read_json
from vitrail.models.zoo.sentiment import check_texts

if TYPE_CHECKING:
    from transformers import BatchEncoding, LlamaForCausalLM, PreTrainedTokenizerFast

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
