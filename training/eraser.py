"""ERASER Movie Reviews (DeYoung et al., arXiv:1911.03429): reviews and whether they are favourable."""

import json
from pathlib import Path

CLASSES = {"NEG": 0, "POS": 1}


def read_eraser(folder: Path, split: str, *, limit: int | None = None) -> tuple[list[str], list[int]]:
    """Reviews and classes of a split; with a limit evenly spaced ones, since a file has all negative ones first.

    Args:
        folder: holds `<split>.jsonl` and `docs/`, a review a file, tokenised, one sentence a line.
    """
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    count = len(lines) if limit is None else min(limit, len(lines))
    rows = [json.loads(lines[number * len(lines) // count]) for number in range(count)]
    texts = [_review(folder / "docs" / row["annotation_id"]) for row in rows]
    return texts, [CLASSES[row["classification"]] for row in rows]


def _review(path: Path) -> str:
    """A review as one line of tokens with single spaces, so that the n-th word is ERASER's n-th token."""
    return " ".join(path.read_text(encoding="utf-8").split())
