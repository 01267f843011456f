"""Labelled texts, and questions about texts.

SST-2: sentences of film reviews, negative or positive. Socher et al., EMNLP 2013.
QQP: pairs of questions from Quora that ask the same or not.
MNLI: whether a premise entails or contradicts a hypothesis. Williams et al., NAACL 2018. These three as split by GLUE
(Wang et al., arXiv:1804.07461).
Amazon and Yelp polarity: reviews with one or two stars against four or five. Zhang, Zhao and LeCun, NeurIPS 2015,
arXiv:1509.01626. The published CSV files have no header, labels 1 and 2, and line breaks written as a backslash and
an n. Titles of Amazon reviews are left out.
IMDB: long film reviews, negative or positive. Maas et al., ACL 2011.
ERASER Movie Reviews: film reviews with the words that annotators marked as reasons. Zaidan, Eisner and Piatko, NAACL
2007, in the form of DeYoung et al., ACL 2020, arXiv:1911.03429.
SQuAD 1.1: questions about paragraphs, answered by a span of the paragraph. Rajpurkar et al., EMNLP 2016,
arXiv:1606.05250. 2.0, with questions that cannot be answered: Rajpurkar, Jia and Liang, ACL 2018, arXiv:1806.03822.
XQuAD and SQuADShifts come in the same format.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from vitrail.errors import InputError, one_line
from vitrail.evaluate.data.examples import Dataset, GoldAnswer, QuestionExample, Span, TextExample, require_unique
from vitrail.evaluate.data.files import (
    Source,
    TableRows,
    open_rows,
    read_all,
    read_json,
    require_file,
)
from vitrail.models.folders import TEXTS, files_in, require_folder
from vitrail.models.texts import read_text

UNPUBLISHED = "-1"  # how the Hugging Face hub marks labels that are kept secret


@dataclass(frozen=True)
class Layout:
    """The columns of a table, under the names they go by, and how labels are written.

    Args:
        codes: from what the label column says to the class number, or None where there is no agreed label.
        classes: names of the classes.
        polish: undoes what the file format did to a text.
    """

    text: tuple[str, ...]
    label: tuple[str, ...]
    codes: Mapping[str, int | None]
    classes: tuple[str, ...]
    second: tuple[str, ...] = ()
    polish: Callable[[str], str] = str


def labelled_texts(name: str, rows: TableRows, layout: Layout) -> Dataset[TextExample]:
    """The rows as examples; only a test file may lack the label column, as GLUE's do."""
    columns = [rows.column(names) for names in (layout.text, layout.second) if names]
    secret = rows.name.startswith("test") and not set(layout.label) & set(rows.columns)
    label = None if secret else rows.column(layout.label)
    read, classes = partial(_example, rows, layout, columns, label), dict(enumerate(layout.classes))
    return Dataset(name, rows.source, range(rows.size), rows.key, read, classes)


def _example(rows: TableRows, layout: Layout, columns: list[str], label: str | None, number: int) -> TextExample:
    key = rows.key(number)
    row = rows.read(number, key)
    for column in columns:
        if not isinstance(row[column], str):
            raise InputError(f"{key}: {rows.source} has {row[column]!r} in column {column}, not a text.")
    found = None if label is None else class_number(row[label], layout.codes, f"{key}: {rows.source}")
    return TextExample(key, *(layout.polish(row[column]) for column in columns), label=found)


def class_number(written: object, codes: Mapping[str, int | None], where: str) -> int | None:
    """The class of a label as it is written."""
    label = str(written).strip()
    if label == UNPUBLISHED:
        return None
    if label not in codes:
        raise InputError(f"{where} has the label {label!r}, which is none of {', '.join(codes)}.")
    return codes[label]


SENTIMENTS = ("negative", "positive")
SST2 = Layout(text=("sentence", "content"), label=("label",), codes={"0": 0, "1": 1}, classes=SENTIMENTS)


def read_sst2(source: Source, *, split: str = "dev") -> Dataset[TextExample]:
    """The sentences of a split."""
    return labelled_texts("sst2", open_rows(source, split=split), SST2)


DUPLICATES = ("not duplicate", "duplicate")
QQP = Layout(
    text=("question1",),
    second=("question2",),
    label=("is_duplicate", "label"),
    codes={"0": 0, "1": 1},
    classes=DUPLICATES,
)


def read_qqp(source: Source, *, split: str = "dev") -> Dataset[TextExample]:
    """The pairs of a split. Some rows of the published training file lack columns; reading one raises."""
    return labelled_texts("qqp", open_rows(source, split=split), QQP)


ENTAILMENTS = ("entailment", "neutral", "contradiction")
NO_AGREEMENT = "-"
MNLI = Layout(
    text=("sentence1", "premise"),
    second=("sentence2", "hypothesis"),
    label=("gold_label", "label"),
    codes={**{name: i for i, name in enumerate(ENTAILMENTS)}, **{str(i): i for i in range(3)}, NO_AGREEMENT: None},
    classes=ENTAILMENTS,
)


def read_mnli(source: Source, *, split: str = "dev_matched") -> Dataset[TextExample]:
    """The pairs of a split; classes in the order of the Hugging Face hub, which not every model shares."""
    return labelled_texts("mnli", open_rows(source, split=split), MNLI)


POLARITY = Layout(text=("content", "text"), label=("label",), codes={"0": 0, "1": 1}, classes=SENTIMENTS)
PUBLISHED_POLARITY = replace(POLARITY, codes={"1": 0, "2": 1}, polish=methodcaller("replace", "\\n", "\n"))


def read_amazon(source: Source, *, split: str = "test") -> Dataset[TextExample]:
    """The reviews of a split of Amazon polarity."""
    return _read_polarity("amazon_polarity", source, split, ("label", "title", "content"))


def read_yelp(source: Source, *, split: str = "test") -> Dataset[TextExample]:
    """The reviews of a split of Yelp polarity."""
    return _read_polarity("yelp_polarity", source, split, ("label", "text"))


def _read_polarity(name: str, source: Source, split: str, published: tuple[str, ...]) -> Dataset[TextExample]:
    rows = open_rows(source, split=split, headless=published)
    return labelled_texts(name, rows, PUBLISHED_POLARITY if rows.headless else POLARITY)


FOLDERS = {"neg": 0, "pos": 1}
IMDB = Layout(
    text=("review", "text"),
    label=("sentiment", "label"),
    codes={"negative": 0, "positive": 1, "neg": 0, "pos": 1, "0": 0, "1": 1},
    classes=SENTIMENTS,
)


def read_imdb(source: Source, *, split: str = "test") -> Dataset[TextExample]:
    """The reviews of a split: of the published folders `<split>/neg` and `<split>/pos`, or of a table."""
    if isinstance(source, str | Path):
        for folder in (Path(source), Path(source) / "aclImdb"):
            if (folder / split).is_dir():
                return _from_folders(folder, split)
    return labelled_texts("imdb", open_rows(source, split=split), IMDB)


def _from_folders(root: Path, split: str) -> Dataset[TextExample]:
    folders = {name: require_folder(root / split / name, f"folder of {name} reviews") for name in FOLDERS}
    files = [file for folder in folders.values() for file in files_in(folder, TEXTS)]
    keys = [f"{split}/{file.parent.name}/{file.stem}" for file in files]
    read = partial(_review, files, keys)
    return Dataset("imdb", str(root / split), range(len(keys)), keys.__getitem__, read, dict(enumerate(SENTIMENTS)))


def _review(files: list[Path], keys: list[str], number: int) -> TextExample:
    key, file = keys[number], files[number]
    return TextExample(key, read_text(file, key=key), label=FOLDERS[file.parent.name])


ERASER_CODES = {"NEG": 0, "POS": 1}


def read_eraser_movies(source: str | Path, *, split: str = "val") -> Dataset[TextExample]:
    """The reviews of a split, all negative ones first; a rationale is every group of evidence merged.

    Args:
        source: a folder with `<split>.jsonl` and `docs/`, where each review is a file of words parted by white space.
    """
    folder = require_folder(Path(source), "ERASER folder")
    path = require_file(folder / f"{split}.jsonl", "ERASER file")
    docs = require_folder(folder / "docs", "folder of reviews")
    rows = [
        _eraser_row(path, number, line) for number, line in enumerate(read_text(path).split("\n"), 1) if line.strip()
    ]
    keys = [row["annotation_id"] for row in rows]
    require_unique(keys, path)
    read = partial(_review_with_rationale, path, docs, rows)
    return Dataset("eraser_movies", str(path), range(len(keys)), keys.__getitem__, read, dict(enumerate(SENTIMENTS)))


def _eraser_row(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
        kept = {name: row[name] for name in ("annotation_id", "classification", "evidences")}
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}, line {number} is not JSON: {one_line(error)}") from error
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}, line {number} needs annotation_id, classification and evidences.") from error
    # The key becomes a file name below: it must not lead out of the folder.
    if not isinstance(kept["annotation_id"], str) or Path(kept["annotation_id"]).name != kept["annotation_id"]:
        raise InputError(f"{path}, line {number}: {kept['annotation_id']!r} is no name of a review.")
    return kept


def _review_with_rationale(path: Path, docs: Path, rows: list[Mapping[str, Any]], number: int) -> TextExample:
    row = rows[number]
    key = row["annotation_id"]
    words = read_text(docs / key, key=key).split()
    try:
        spans = {(e["start_token"], e["end_token"]) for group in row["evidences"] for e in group}
        wrong = [span for span in spans if not 0 <= span[0] <= span[1] <= len(words)]
    except (KeyError, TypeError) as error:
        raise InputError(f"{key}: {path} has evidence without start_token and end_token.") from error
    if wrong:
        raise InputError(f"{key}: {path} has evidence from word {wrong[0][0]} to {wrong[0][1]} of {len(words)}.")
    label = class_number(row["classification"], ERASER_CODES, f"{key}: {path}")
    # One published span holds no word.
    rationale = tuple(Span(start, end) for start, end in sorted(spans) if start < end)
    return TextExample(key, " ".join(words), label=label, rationale=rationale)


FIELDS = ("id", "question", "context", "answers")
Record = Mapping[str, Any]


def read_squad(source: Source, *, split: str = "dev") -> Dataset[QuestionExample]:
    """The questions of a file of version 1.1, where each has an answer.

    Args:
        split: names the file in a folder, or the split of a `datasets` object.
    """
    return _dataset("squad", *_records(source, split), needs_answer=True)


def read_squad2(source: Source, *, split: str = "dev", answerable: bool = False) -> Dataset[QuestionExample]:
    """The questions of a file of version 2.0.

    Args:
        answerable: leave out those that have no answer.
    """
    records, where = _records(source, split)
    kept = [record for record in records if record["answers"]] if answerable else records
    return _dataset("squad2", kept, where, needs_answer=False)


def _dataset(name: str, records: list[Record], where: str, *, needs_answer: bool) -> Dataset[QuestionExample]:
    keys = [str(record["id"]) for record in records]
    require_unique(keys, where)
    read = partial(_question, records, where, needs_answer=needs_answer)
    return Dataset(name, where, range(len(keys)), keys.__getitem__, read)


def _records(source: Source, split: str) -> tuple[list[Record], str]:
    """Each question with its context, from JSON, Parquet or a `datasets` object."""
    if isinstance(source, str | Path) and (path := _json_file(Path(source), split)):
        return _from_json(read_json(require_file(path, "SQuAD file")), path), str(path)
    rows = open_rows(source, split=split)
    for field in FIELDS:
        rows.column((field,))
    return [{**row, "answers": _pairs(row["answers"])} for row in read_all(rows)], rows.source


def _json_file(path: Path, split: str) -> Path | None:
    """The JSON file meant by a path: itself, or the only one in a folder that has the split in its name."""
    if not path.is_dir():
        return None if path.suffix == ".parquet" else path
    found = sorted(path.glob(f"{split}*.json"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise InputError(f"{path} has {len(found)} files {split}*.json; name one of {names}.")
    return found[0] if found else None


def _from_json(content: Any, path: Path) -> list[Record]:  # noqa: ANN401
    try:
        return [
            {"id": row["id"], "question": row["question"], "context": paragraph["context"], "answers": row["answers"]}
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for row in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not in the format of SQuAD: {error!r} went wrong on the way to a question."
        ) from error


def _pairs(answers: Any) -> list[Record]:  # noqa: ANN401
    """Answers as the hub stores them, a list of texts and a list of places, as SQuAD's own pairs."""
    try:
        pairs = zip(answers["text"], answers["answer_start"], strict=True)
        return [{"text": text, "answer_start": start} for text, start in pairs]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"answers need a text and an answer_start each, as in the hub's tables, not {answers!r}."
        ) from error


def _question(records: list[Record], where: str, number: int, *, needs_answer: bool) -> QuestionExample:
    record = records[number]
    key, context = str(record["id"]), record["context"]
    try:
        answers = tuple(GoldAnswer(answer["text"], answer["answer_start"]) for answer in record["answers"])
        strays = [answer for answer in answers if context[answer.start : answer.end] != answer.text]
    except (KeyError, TypeError) as error:
        raise InputError(f"{key}: {where} has an answer without a text or an answer_start.") from error
    if strays:
        raise InputError(f"{key}: {where} has the answer {strays[0].text!r}, which is not at {strays[0].start}.")
    if needs_answer and not answers:
        raise InputError(f"{key}: {where} has no answer to this question; read the file as squad2.")
    return QuestionExample(key, record["question"], context, answers)
