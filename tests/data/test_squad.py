import json

import pytest

from vitrail.errors import InputError
from vitrail.evaluate.data import GoldAnswer, load


def article(*rows, context="It was Ada in 1843."):
    return {"version": "v2.0", "data": [{"title": "Ada", "paragraphs": [{"context": context, "qas": list(rows)}]}]}


def question(key, *answers, **more):
    return {"id": key, "question": " Who? ", "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}


@pytest.fixture
def write(tmp_path):
    def save(content):
        (tmp_path / "dev-v2.0.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / "dev-v2.0.json"

    return save


@pytest.mark.parametrize(
    ("file", "count"),
    [("xquad.en", 1190), ("amazon_reviews_v1.0", 9885), ("new_wiki_v1.0", 7938), ("reddit_v1.0", 9803)],
)
def test_the_real_files_hold_answers_where_they_say(real, file, count):
    dataset = load("squad", real("text/squad") / f"{file}.json")
    assert len(dataset) == count
    for example in dataset.spread(500):
        assert example.answers
        assert all(example.context[a.start : a.end] == a.text for a in example.answers)


def test_the_real_second_version_has_questions_without_an_answer(real):
    path = real("text/squad/squad2_dev_half.json")
    every, answerable = load("squad2", path), load("squad2", path, answerable=True)
    assert (len(every), len(answerable)) == (6078, 2910)
    assert sum(example.answerable for example in every) == 2910
    assert all(example.answerable for example in answerable)


def test_questions_come_with_their_context_and_all_answers(write):
    path = write(article(question("a", ("Ada", 7), ("It was Ada", 0)), question("b", is_impossible=True)))
    first, second = load("squad2", path)
    assert (first.key, first.question, first.context) == ("a", " Who? ", "It was Ada in 1843.")
    assert first.answers == (GoldAnswer("Ada", 7), GoldAnswer("It was Ada", 0))
    assert first.answers[0].end == 10
    assert not second.answerable
    assert load("squad2", path.parent).keys == ["a", "b"]


def test_a_wrong_answer_raises_for_its_question(write):
    broken = {"id": "d", "question": "?", "answers": [{"text": "Ada"}]}
    dataset = load("squad", write(article(question("a", ("Ada", 6)), question("b"), question("c", ("Ada", 7)), broken)))
    with pytest.raises(InputError, match=r"^a: .*has the answer 'Ada', which is not at 6"):
        dataset[0]
    with pytest.raises(InputError, match=r"^b: .*has no answer to this question; read the file as squad2"):
        dataset[1]
    assert dataset[2].answerable
    with pytest.raises(InputError, match=r"^d: .*without a text or an answer_start"):
        dataset[3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not in the format of SQuAD"),
        ({"data": [{"title": "x"}]}, "not in the format of SQuAD: KeyError\\('paragraphs'\\)"),
        ({"data": []}, "holds no examples of squad2"),
        (article(question("a"), question("a")), "names a twice"),
    ],
)
def test_a_file_of_another_format_is_named(write, content, message):
    with pytest.raises(InputError, match=f"dev-v2.0.json.*{message}"):
        load("squad2", write(content))


def test_missing_and_unclear_files_are_named(write, tmp_path):
    path = write(article(question("a")))
    path.with_name("dev-v1.1.json").write_text("{}")
    with pytest.raises(InputError, match=r"2 files dev\*.json; name one of dev-v1.1.json, dev-v2.0.json"):
        load("squad", tmp_path)
    with pytest.raises(InputError, match="has no file train"):
        load("squad", tmp_path, split="train")
    with pytest.raises(InputError, match=r"there is no SQuAD file at .*x.json"):
        load("squad", tmp_path / "x.json")


def test_parquet_needs_the_columns_of_squad(tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.table({"id": ["a"], "question": ["?"]}), tmp_path / "validation.parquet")
    with pytest.raises(InputError, match="no column context"):
        load("squad", tmp_path)
