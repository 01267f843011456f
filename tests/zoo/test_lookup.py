"""The lookup model: it answers from its context, and its language is small."""

import pytest

import vitrail
from training.lookup import MOST, WORDS, accuracy
from vitrail import zoo
from vitrail.errors import InputError


@pytest.fixture(scope="module")
def lookup():
    return zoo.load("lookup")


def test_it_is_right_on_new_texts(lookup):
    assert accuracy(lookup.model, people=MOST) >= 0.99
    assert accuracy(lookup.model, people=3) >= 0.99
    assert lookup.class_names == WORDS


def test_its_answer_ends_and_rests_on_the_sentence_of_the_person_asked_about(lookup):
    tokenizer = lookup.preprocess.tokenizer
    for who, what, place in (("Anna", "ring", 0), ("Clara", "lamp", 2)):
        prompt = f"Anna: ring. Boris: key. Clara: lamp. David: map. {who}:"
        found = vitrail.generate(lookup.model, tokenizer, prompt, method="attn_lrp")
        assert found.text == f"{what}."
        assert found.cite(1)[0][0].passage.text.strip() == f"{who}: {what}."
        assert int(found.table[0].argmax()) == place


def test_words_that_it_does_not_know_are_refused(lookup):
    with pytest.raises(InputError, match="does not know the word 'Zoe:'"):
        lookup.preprocess("Anna: ring. Zoe:")
    inputs = lookup.preprocess(["Anna: ring. Anna:", "Boris:"])
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
