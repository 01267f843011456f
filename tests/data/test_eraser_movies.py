import json

import pytest

from vitrail.errors import InputError
from vitrail.evaluate.data import Span, load


def evidence(start, end):
    return {"docid": "negR_1.txt", "start_token": start, "end_token": end, "text": "-"}


def row(key, *groups, label="NEG"):
    return {"annotation_id": key, "classification": label, "evidences": list(groups), "query": "-"}


@pytest.fixture
def write(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "negR_1.txt").write_text("a dull film .\nand long .\n")
    (tmp_path / "docs" / "posR_1.txt").write_text("fine .\n")

    def save(*rows):
        lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
        (tmp_path / "val.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path

    return save


@pytest.mark.parametrize(("split", "count"), [("train", 1600), ("val", 200), ("test", 199)])
def test_the_words_of_the_real_rationales_are_those_that_people_marked(real, split, count):
    path = real("text/eraser_movies")
    dataset = load("eraser_movies", path, split=split)
    assert len(dataset) == count
    rows = {r["annotation_id"]: r for r in map(json.loads, (path / f"{split}.jsonl").read_text().splitlines())}
    for example in dataset.spread(60):
        marked = {e["text"] for group in rows[example.key]["evidences"] for e in group if e["text"]}
        found = {" ".join(example.words[span.start : span.end]) for span in example.rationale}
        assert found == marked
        assert dataset.classes[example.label][:3] == example.key[:3]
        assert 0 < example.rationale_mask.sum() < len(example.words)


def test_groups_of_evidence_are_merged_and_words_counted_over_lines(write):
    path = write(
        row("negR_1.txt", [evidence(5, 6), evidence(1, 3)], [evidence(1, 3), evidence(4, 4)]),
        row("posR_1.txt", label="POS"),
    )
    first, second = load("eraser_movies", path)
    assert first.text == "a dull film . and long ."
    assert first.rationale == (Span(1, 3), Span(5, 6))
    assert (first.label, second.label, second.rationale) == (0, 1, ())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (row("negR_1.txt", [evidence(5, 8)]), "evidence from word 5 to 8 of 7"),
        (row("negR_1.txt", [evidence(3, 2)]), "evidence from word 3 to 2"),
        (row("negR_1.txt", [{}]), "evidence without start_token"),
        (row("negR_1.txt", label="MEH"), "label 'MEH', which is none of NEG, POS"),
        (row("negR_2.txt"), "there is no file .*negR_2.txt"),
    ],
)
def test_a_wrong_review_raises_for_its_example(write, wrong, message):
    dataset = load("eraser_movies", write(wrong, row("posR_1.txt", label="POS")))
    assert dataset[1].label == 1
    with pytest.raises(InputError, match=f"^{wrong['annotation_id']}: .*{message}"):
        dataset[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 needs annotation_id"),
        ({"annotation_id": "x"}, "line 2 needs annotation_id, classification and evidences"),
        (row("../secret.txt"), "line 2: '../secret.txt' is no name of a review"),
        (row("posR_1.txt"), "names posR_1.txt twice"),
    ],
)
def test_a_wrong_line_is_named(write, line, message):
    with pytest.raises(InputError, match=rf"val.jsonl.*{message}"):
        load("eraser_movies", write(row("posR_1.txt"), line))


def test_missing_and_empty_files_are_named(write, tmp_path):
    with pytest.raises(InputError, match=r"val.jsonl holds no examples"):
        load("eraser_movies", write())
    with pytest.raises(InputError, match=r"there is no ERASER file at .*test.jsonl"):
        load("eraser_movies", tmp_path, split="test")
    (tmp_path / "docs").rename(tmp_path / "texts")
    with pytest.raises(InputError, match=r"there is no folder of reviews at .*docs"):
        load("eraser_movies", tmp_path)
