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
    from vitrail.models.zoo.sentiment import check_texts

    with pytest.raises(InputError, match=words):
        check_texts(sentences)
