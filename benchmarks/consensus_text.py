"""Token-F1 on the spans that people marked in tweets, which the bench has no reader for.

    python benchmarks/consensus_text.py train.csv [--half test] [--limit 300] [--method gae ...]

The file has the columns text, selected_text and sentiment. The sentiment model explains the class of the label; the
mean over the 1 to 6 highest words. Differences come with 95 % intervals of a paired bootstrap over tweets.
"""

import argparse
import csv
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import vitrail
from vitrail import metrics
from vitrail.evaluate.metrics.texts import top
from vitrail.models.loading import load

KS, SHORTEST, LARGEST, RESAMPLES = range(1, 7), 8, 0.5, 2000
METHODS = ["gae", "agcam", "attn_lrp", "tokentm", "att_grads", "attcat", "cat", "grad_eclip_heads", "le_grad"]
HALVES = {"tune": 0, "test": 1}
Pairs = dict[str, dict[str, float]]


def f1(hits: np.ndarray, chosen: np.ndarray, gold: int) -> float:
    """The mean over sizes of F1, in percent."""
    return 100 * float(np.mean(2 * hits / (chosen + gold)))


def tweets(path: Path, half: str) -> Iterator[tuple[str, int, np.ndarray]]:
    """Text, class and marked words of every second tweet, in an order of its own; neither short ones nor whole ones."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["sentiment"] != "neutral" and row["selected_text"]]
    rows = [row for row in rows if row["selected_text"] in row["text"]]
    order = np.random.default_rng(1).permutation(len(rows))
    for i in order[HALVES[half] :: 2]:
        text, marked = rows[i]["text"], rows[i]["selected_text"]
        start = text.index(marked)
        spans = [word.span() for word in re.finditer(r"\S+", text)]
        gold = np.array([first < start + len(marked) and last > start for first, last in spans])
        if len(spans) >= SHORTEST and gold.mean() <= LARGEST:
            yield text, int(rows[i]["sentiment"] == "positive"), gold


def on_tweets(path: Path, half: str, limit: int, names: list[str]) -> Pairs:
    """By method, the token-F1 of each tweet."""
    loaded = load("sentiment")
    assert loaded.tokenizer is not None
    specs = ["consensus", ("consensus", {"preset": "spans"}), *names]
    labels = ["consensus", "consensus(preset=spans)", *names]
    found: Pairs = {label: {} for label in labels}
    for number, (text, label, gold) in zip(range(limit), tweets(path, half), strict=False):
        inputs = loaded.tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
        offsets = loaded.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        for name, one in zip(labels, vitrail.compare(loaded.model, dict(inputs), specs, label), strict=True):
            words = metrics.word_scores(one.scores[0].clamp(min=0), np.array(offsets), text)
            chosen = np.stack([top(words[None], k)[0] for k in KS])
            found[name][str(number)] = f1((chosen & gold).sum(axis=1), chosen.sum(axis=1), int(gold.sum()))
    return found


def show(title: str, found: Pairs, against: str | None) -> None:
    """Every method's mean, and what it has more than another, with the interval of that difference."""
    shared = sorted(set.intersection(*(set(values) for values in found.values())))
    table = {name: np.array([values[key] for key in shared]) for name, values in found.items()}
    others = [name for name in table if not name.startswith("consensus")]
    base = against if against in table else max(others, key=lambda name: table[name].mean())
    drawn = np.random.default_rng(0).integers(len(shared), size=(RESAMPLES, len(shared)))
    print(f"{title}: {len(shared)} examples, differences from {base}")
    for name, values in sorted(table.items()):
        more = values - table[base]
        low, high = np.percentile(more[drawn].mean(axis=1), [2.5, 97.5])
        print(f"  {name:50s} {values.mean():8.3f}  {more.mean():+.3f} [{low:+.3f}, {high:+.3f}]")


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--against", help="the method that others are compared with; the best that is not ours")
    parser.add_argument("--half", choices=HALVES, default="test")
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--method", action="append", help="published methods on tweets")
    args = parser.parse_args()
    names = args.method or METHODS
    show("tweets, token-F1", on_tweets(args.path, args.half, args.limit, names), args.against)


if __name__ == "__main__":
    main()
