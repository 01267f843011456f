"""How much better one method is than the best of all others in every column of results files, with paired intervals.

    python benchmarks/consensus_held_out.py vit.db deit.db [--method consensus] [--leave-out "consensus.*"]

Files come from `vitrail bench run`. The best of the others is the best among those measured on nearly all examples;
methods measured on fewer are compared one by one on the examples they have.
"""

import argparse
import re
from pathlib import Path

from vitrail.evaluate.bench.measure import Column
from vitrail.evaluate.bench.store import reading
from vitrail.evaluate.bench.table import WHOLE, MethodSample, TableGroup, gain, read_groups


def row(group: TableGroup, column: Column, mine: MethodSample, others: dict[str, MethodSample]) -> str:
    """One line of the table: the value, the best of the others, the gain, and what was measured on fewer examples."""
    gains = {name: gain(column, mine, sample) for name, sample in others.items() if sample.present.any()}
    most = max(int(others[name].present.sum()) for name in gains)
    whole = [name for name in gains if others[name].present.sum() >= WHOLE * most]
    best = min(whole, key=lambda name: gains[name][0])
    few = [
        f"{name} {gains[name][0]:+.3f} [{gains[name][1]:+.3f}, {gains[name][2]:+.3f}]"
        for name in gains
        if name not in whole
    ]
    value, against = (
        float(column.finish(x.features[x.present].mean(axis=0, keepdims=True))[0]) for x in (mine, others[best])
    )
    middle, low, high = gains[best]
    said = f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"| {column.name} | {value:.3f} | {against:.3f} `{best}` | {said} | {'; '.join(few)} |"


def main() -> None:
    """Print one table for each group of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--method", default="consensus")
    parser.add_argument("--leave-out", default=r"consensus.*", help="a regular expression: methods that do not count")
    given = parser.parse_args()
    for path in given.files:
        with reading(path) as store:
            for group in read_groups(store):
                labels = [method.label for method in group.methods]
                if given.method not in labels:
                    continue
                print(f"\n{group.title}\n\n| column | value | best of the others | gain [95 %] | measured on fewer |")
                print("|---|---:|---|---|---|")
                for column in group.columns:
                    samples = dict(zip(labels, group.samples(column), strict=True))
                    left = re.compile(given.leave_out)
                    others = {name: x for name, x in samples.items() if not left.fullmatch(name)}
                    print(row(group, column, samples[given.method], others))


if __name__ == "__main__":
    main()
