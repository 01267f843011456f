import pytest
import torch
from torch.testing import assert_close
from transformers import BatchEncoding

from vitrail import zoo
from vitrail.errors import InputError


@pytest.fixture(scope="module")
def sentiment():
    return zoo.load("sentiment")


def probs(sentiment, sentences):
    with torch.no_grad():
        return sentiment.model(**sentiment.preprocess(sentences)).logits.softmax(dim=1)


def test_sentences_become_a_batch_encoding_with_readable_tokens(sentiment):
    batch = sentiment.preprocess(["Good!", "Not really good."])
    assert isinstance(batch, BatchEncoding)
    assert batch.tokens(0) == ["[CLS]", "good", "!", "[SEP]", "[PAD]", "[PAD]"]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]


def test_a_lone_sentence_is_a_batch_of_one(sentiment):
    assert_close(dict(sentiment.preprocess("a good film")), dict(sentiment.preprocess(["a good film"])))


def test_padding_changes_nothing(sentiment):
    short, long = "a gripping film", "a long , dull and hopelessly muddled film that nobody should have to sit through"
    # float32 sums in another order
    assert_close(probs(sentiment, [short, long])[:1], probs(sentiment, [short]), rtol=0, atol=1e-5)


def test_praise_and_complaint_are_told_apart(sentiment):
    found = probs(sentiment, ["A gripping, beautifully acted film.", "I wanted my money back after ten minutes."])
    assert found[0, 1] > 0.95
    assert found[1, 0] > 0.95


def test_a_text_over_the_limit_is_refused_and_one_at_the_limit_is_read(sentiment):
    assert sentiment.preprocess(["good " * 510])["input_ids"].shape == (1, 512)
    with pytest.raises(InputError, match="has 513 tokens, but the sentiment model reads at most 512"):
        sentiment.preprocess(["fine", "good " * 511])


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        ([], "no sentence"),
        (["fine", "  "], "sentence 1 is empty"),
        (["fine", None], "sentence 1 is no text but NoneType"),
        (["half \ud83d"], "half a character"),
    ],
)
def test_what_is_no_text_is_refused(sentiment, sentences, words):
    # The hint of the argument is checked first while tests run; below it the message must still help.
    from vitrail.models.zoo.texts import check_texts

    with pytest.raises(InputError, match=words):
        check_texts(sentences)


TEXTS = [
    "A gripping film, never dull!", "caf\xe9 na\xefve \u65e5\u672c\u8a9e \U0001f600", "don't", "x" * 300,
    "tab\tand\nline",
    "[MASK] [SEP] and [CLS]", "\u200bhidden\u00a0space", "3.14 % of $5,000", "Stra\xdfe \u0130stanbul",
]  # fmt: skip


@pytest.mark.parametrize("padding", [True, False])
def test_the_tokenizer_without_transformers_cuts_as_the_one_with_it(padding):
    light = zoo.load_plain("sentiment").preprocess.tokenizer
    for texts in (TEXTS if padding else TEXTS[:1], TEXTS[1]):
        more = {"return_tensors": "pt", "padding": padding, "return_special_tokens_mask": True, "verbose": False}
        ours, theirs = light(texts, **more), light.full(texts, **more)
        assert ours.keys() == theirs.keys()
        assert all(ours[name].tolist() == theirs[name].tolist() for name in theirs)
        assert [one.tokens for one in ours.encodings] == [one.tokens for one in theirs.encodings]
    ours, theirs = (cut("a film", "a book", return_tensors="pt", padding=False) for cut in (light, light.full))
    assert ours["token_type_ids"].tolist() == theirs["token_type_ids"].tolist()
    roles = [f"{role}_token_id" for role in ("pad", "unk", "mask", "bos", "eos", "cls", "sep")]
    for name in ("all_special_ids", *roles, "pad_token", "padding_side"):
        assert getattr(light, name) == getattr(light.full, name), name
    assert light.decode([2000]) == light.full.decode([2000])  # the rest is that tokenizer's own
