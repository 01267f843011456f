"""SQuAD: questions about paragraphs, answered by a span of the paragraph.

1.1: Rajpurkar et al., EMNLP 2016, arXiv:1606.05250. 2.0, with questions that cannot be answered: Rajpurkar, Jia and
Liang, ACL 2018, arXiv:1806.03822. XQuAD and SQuADShifts come in the same format.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.errors import InputError
from vitrail.evaluate.data.examples import Dataset, GoldAnswer, QuestionExample, require_unique
from vitrail.evaluate.data.files import read_json, require_file
from vitrail.evaluate.data.rows import Source, open_rows, read_all

FIELDS = ("id", "question", "context", "answers")
Record = Mapping[str, Any]


def read_squad(source: Source, *, split: str = "dev") -> Dataset[QuestionExample]:
    """The questions of a file of version 1.1, where each has an answer.

    Args:
        split: names the file in a folder, or the split of a `datasets` object.
    """
    records, where = _records(source, split)
    return _dataset("squad", records, where, needs_answer=True)


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
    read = partial(_example, records, where, needs_answer=needs_answer)
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
        raise InputError(
            f"{path} has {len(found)} files {split}*.json; name one of {', '.join(f.name for f in found)}."
        )
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


def _example(records: list[Record], where: str, number: int, *, needs_answer: bool) -> QuestionExample:
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
