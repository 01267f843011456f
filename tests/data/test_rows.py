"""Parquet files and objects of the library `datasets`."""

import builtins
import pickle

import pytest

from vitrail.errors import InputError, MissingExtraError
from vitrail.evaluate.data import load

COLUMNS = {"sentence": ["dull", "fine", "hidden"], "label": [0, 1, -1], "idx": [0, 1, 2]}
LABELS = [0, 1, None]


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet")


def save(parquet, path, columns):
    import pyarrow

    parquet.write_table(pyarrow.table(columns), path)


def test_parquet_reads_as_a_table(tmp_path, parquet):
    save(parquet, tmp_path / "validation.parquet", COLUMNS)
    dataset = load("sst2", tmp_path)
    assert [(example.text, example.label) for example in dataset] == list(zip(COLUMNS["sentence"], LABELS, strict=True))
    assert dataset.keys == ["validation-0", "validation-1", "validation-2"]
    assert pickle.loads(pickle.dumps(dataset))[1] == dataset[1]


def test_parts_of_a_split_follow_one_another(tmp_path, parquet):
    for part in range(2):
        columns = {"premise": [f"a{part}"], "hypothesis": [f"b{part}"], "label": [part]}
        save(parquet, tmp_path / f"validation_matched-0000{part}-of-00002.parquet", columns)
    dataset = load("mnli", tmp_path)
    assert [(example.key, *example.texts) for example in dataset] == [
        ("validation_matched-0", "a0", "b0"),
        ("validation_matched-1", "a1", "b1"),
    ]


def test_wrong_parquet_files_are_named(tmp_path, parquet):
    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match=r"test.parquet cannot be read as Parquet"):
        load("imdb", path)
    save(parquet, path, {"content": ["a"], "label": [1]})
    with pytest.raises(InputError, match="no column review or text; its columns are content, label"):
        load("imdb", path)
    save(parquet, path, {"text": ["a", None], "label": [1, 1]})
    dataset = load("imdb", path)
    assert dataset[0].text == "a"
    with pytest.raises(InputError, match=r"test-1: .*has None in column text"):
        dataset[1]
    save(parquet, tmp_path / "dev-00000-of-00002.parquet", {"sentence": ["a"], "label": [1]})
    save(parquet, tmp_path / "dev-00001-of-00002.parquet", {"words": ["a"]})
    with pytest.raises(InputError, match="have different columns"):
        load("sst2", tmp_path)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "dev.parquet").touch()
    real_import = builtins.__import__

    def no_pyarrow(name, *args, **more):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real_import(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", no_pyarrow)
    with pytest.raises(MissingExtraError, match=r"dev.parquet is read with pyarrow: pip install 'vitrail\[data\]'"):
        load("sst2", tmp_path)


class Table:
    """What is asked of an object: column names, a length, rows by number."""

    column_names = tuple(COLUMNS)
    split = None

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return {name: values[number] for name, values in COLUMNS.items()}


def test_an_object_with_columns_reads_as_a_table():
    assert [example.label for example in load("sst2", Table())] == LABELS
    assert load("sst2", {"validation": Table()}).keys == ["dev-0", "dev-1", "dev-2"]
    with pytest.raises(InputError, match="no split dev; it has train"):
        load("sst2", {"train": Table()})
    with pytest.raises(InputError, match=r"a path, or an object of the library datasets, not int"):
        load("sst2", 3)


def test_objects_of_the_library_datasets_read_as_tables():
    datasets = pytest.importorskip("datasets")
    sentences = datasets.Dataset.from_dict(COLUMNS)
    assert [example.label for example in load("sst2", sentences)] == LABELS
    assert load("sst2", datasets.DatasetDict(validation=sentences), every=2)[1].text == "hidden"
    questions = datasets.Dataset.from_dict(
        {
            "id": ["q1", "q2"],
            "question": ["Who?", "Why?"],
            "context": ["It was Ada.", "Nobody knows."],
            "answers": [{"text": ["Ada"], "answer_start": [7]}, {"text": [], "answer_start": []}],
        }
    )
    first, second = load("squad2", questions)
    assert (first.answers[0].text, first.answers[0].start, second.answerable) == ("Ada", 7, False)
    assert load("squad2", questions, answerable=True).keys == ["q1"]
