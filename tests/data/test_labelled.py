"""SST-2, QQP, MNLI, the polarity sets and IMDB, in the formats in which they are published."""

import csv
from pathlib import Path

import pytest

from vitrail.errors import InputError
from vitrail.evaluate.data import load

MNLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2\tlabel1\tgold_label\n"
)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def seen(dataset):
    return [(example.text, example.second, example.label) for example in dataset]


@pytest.mark.parametrize(("split", "count"), [("train", 67349), ("dev", 872), ("test", 1821)])
def test_the_real_sst2_has_its_published_size(real, split, count):
    dataset = load("sst2", real("text/sst2"), split=split)
    assert len(dataset) == count
    assert {example.label for example in dataset.spread(200)} == {0, 1}
    assert dataset[-1].key == f"{split}-{count - 1}"


def test_the_real_sst2_reads_line_by_line(real):
    dataset = load("sst2", real("text/sst2"))
    lines = Path(real("text/sst2") / "dev.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    assert [f"{example.label}\t{example.text}" for example in dataset] == lines


def test_sst2_columns_may_come_in_either_order(tmp_path):
    write(tmp_path / "dev.tsv", 'sentence\tlabel\na "fine" film \t1\nd\u00e9j\u00e0 vu\u2028again\t0\n\n')
    assert seen(load("sst2", tmp_path)) == [('a "fine" film ', None, 1), ("d\u00e9j\u00e0 vu\u2028again", None, 0)]
    write(tmp_path / "test.tsv", "index\tsentence\n0\thidden\n")
    assert seen(load("sst2", tmp_path, split="test")) == [("hidden", None, None)]
    write(tmp_path / "train.tsv", "\ufefflabel\tsentence\r\n1\twindows\r\n")
    assert seen(load("sst2", tmp_path, split="train")) == [("windows", None, 1)]


def test_qqp_gives_pairs_and_keeps_its_quotes(tmp_path):
    path = write(
        tmp_path / "dev.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        '7\t1\t2\tWho?\t"Who"?\t1\n8\t3\t4\tcut off\n9\t5\t6\tA\tB\t0\n',
    )
    dataset = load("qqp", path)
    assert seen([dataset[0], dataset[2]]) == [("Who?", '"Who"?', 1), ("A", "B", 0)]
    with pytest.raises(InputError, match=r"^dev-1: .*dev.tsv has 4 columns in this row, but 6"):
        dataset[1]


def test_mnli_names_become_numbers_and_no_agreement_none(tmp_path):
    rows = [("neutral", "contradiction"), ("entailment", "entailment"), ("neutral", "-")]
    lines = [f"{i}\tp\tq\tfiction\t(\t(\t(\t(\tone {i}\ttwo {i}\t{a}\t{gold}\n" for i, (a, gold) in enumerate(rows)]
    write(tmp_path / "dev_matched.tsv", MNLI_HEADER + "".join(lines))
    assert seen(load("mnli", tmp_path)) == [("one 0", "two 0", 2), ("one 1", "two 1", 0), ("one 2", "two 2", None)]
    assert load("mnli", tmp_path).classes[2] == "contradiction"


def test_published_polarity_files_have_no_header_and_labels_from_one(tmp_path):
    write(tmp_path / "a" / "test.csv", '"2","Great, really","Says ""buy"" it.\\nTwice."\n"1","","Bad"\n')
    assert seen(load("amazon_polarity", tmp_path / "a")) == [('Says "buy" it.\nTwice.', None, 1), ("Bad", None, 0)]
    write(tmp_path / "y" / "test.csv", '"1","Never\nagain"\n"2","Good"\n')
    assert seen(load("yelp_polarity", tmp_path / "y")) == [("Never\nagain", None, 0), ("Good", None, 1)]


def test_polarity_files_with_a_header_have_labels_from_zero(tmp_path):
    write(tmp_path / "test.csv", 'label,title,content\n1,t,"keeps \\n"\n')
    assert seen(load("amazon_polarity", tmp_path)) == [("keeps \\n", None, 1)]


def test_imdb_folders_and_tables_say_the_same(tmp_path):
    write(tmp_path / "aclImdb" / "test" / "neg" / "0_2.txt", "Dull.<br />Long.")
    write(tmp_path / "aclImdb" / "test" / "pos" / "1_9.txt", "Fine, \u201ctruly\u201d.")
    write(tmp_path / "aclImdb" / "test" / "pos" / "0_10.txt", "Best.")
    folders = load("imdb", tmp_path)
    assert folders.keys == ["test/neg/0_2", "test/pos/0_10", "test/pos/1_9"]
    with (tmp_path / "imdb.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        writer.writerows([example.text, folders.classes[example.label]] for example in folders)
    assert seen(load("imdb", tmp_path / "imdb.csv")) == seen(folders)


def test_one_broken_review_raises_alone(tmp_path):
    for name in ("neg/0_1", "pos/0_9"):
        write(tmp_path / "test" / f"{name}.txt", "Hm.")
    (tmp_path / "test" / "neg" / "0_1.txt").write_bytes(b"\xff\xfe broken")
    dataset = load("imdb", tmp_path)
    with pytest.raises(InputError, match=r"^test/neg/0_1: .*0_1.txt is not text in UTF-8"):
        dataset[0]
    assert dataset[1].label == 1
    (tmp_path / "test" / "neg" / "0_1.txt").unlink()
    with pytest.raises(InputError, match=r"^test/neg/0_1: there is no file"):
        dataset[0]
    (tmp_path / "test" / "neg").rmdir()
    with pytest.raises(InputError, match="there is no folder of neg reviews"):
        load("imdb", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"dev.tsv is empty"),
        ("label\tsentence\n", "holds no examples of sst2"),
        ("label\ttext\n1\ta\n", "no column sentence or content; its columns are label, text"),
        ("sentence\tscore\na\t1\n", "no column label"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    write(tmp_path / "dev.tsv", content)
    with pytest.raises(InputError, match=message):
        load("sst2", tmp_path)


def test_a_wrong_label_or_a_wrong_byte_raises_for_its_example(tmp_path):
    (tmp_path / "dev.tsv").write_bytes(b"label\tsentence\n2\ta\n1\t\xff\n1\tfine\n")
    dataset = load("sst2", tmp_path)
    with pytest.raises(InputError, match=r"^dev-0: .*dev.tsv has the label '2', which is none of 0, 1"):
        dataset[0]
    with pytest.raises(InputError, match=r"^dev-1: .*dev.tsv cannot be read here"):
        dataset[1]
    assert dataset[2].text == "fine"


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no data set at .*x.tsv"):
        load("sst2", tmp_path / "x.tsv")
    with pytest.raises(InputError, match=r"has no file dev with one of the endings .tsv, .csv, .parquet"):
        load("sst2", tmp_path)
    write(tmp_path / "dev.txt", "a")
    with pytest.raises(InputError, match=r"dev.txt is not read here: needs a .tsv"):
        load("sst2", tmp_path / "dev.txt")
