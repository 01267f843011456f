"""ERASER Movie Reviews: film reviews with the words that people gave as reasons.

Zaidan, Eisner and Piatko, NAACL 2007, in the form of DeYoung et al. (ERASER), ACL 2020, arXiv:1911.03429.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.errors import InputError
from vitrail.evaluate.data.dataset import Dataset, require_unique
from vitrail.evaluate.data.examples import Span, TextExample
from vitrail.evaluate.data.files import one_line, read_text, require_file, require_folder
from vitrail.evaluate.data.labelled import class_number

CLASSES = ("negative", "positive")
CODES = {"NEG": 0, "POS": 1}


def read_eraser_movies(source: str | Path, *, split: str = "val") -> Dataset[TextExample]:
    """The reviews of a split, all negative ones first; a rationale is every group of evidence merged.

    Args:
        source: a folder with `<split>.jsonl` and `docs/`, where each review is a file of words parted by white space.
    """
    folder = require_folder(Path(source), "ERASER folder")
    path = require_file(folder / f"{split}.jsonl", "ERASER file")
    docs = require_folder(folder / "docs", "folder of reviews")
    rows = [_row(path, number, line) for number, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    keys = [row["annotation_id"] for row in rows]
    require_unique(keys, path)
    read = partial(_example, path, docs, rows)
    return Dataset("eraser_movies", str(path), range(len(keys)), keys.__getitem__, read, dict(enumerate(CLASSES)))


def _row(path: Path, number: int, line: str) -> Mapping[str, Any]:
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


def _example(path: Path, docs: Path, rows: list[Mapping[str, Any]], number: int) -> TextExample:
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
    label = class_number(row["classification"], CODES, f"{key}: {path}")
    # One published span holds no word.
    rationale = tuple(Span(start, end) for start, end in sorted(spans) if start < end)
    return TextExample(key, " ".join(words), label=label, rationale=rationale)
