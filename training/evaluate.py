"""Print the accuracy and the confusion table of the models as shipped, loaded through `vitrail.zoo`.

python -m training.evaluate photo --data IMAGENETTE_DIR       # the folder with val.zip
python -m training.evaluate sentiment --data SST2_DIR         # the folder with dev.tsv and test.tsv
"""

import argparse
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from training.sentences import read_sst2
from vitrail import zoo
from vitrail.evaluate.data.labelled import IMAGENETTE_SYNSETS


def photo_pairs(data: Path, *, limit: int | None = None, batch: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """True and guessed classes of the validation photographs, evenly spaced ones where there is a limit."""
    loaded = zoo.load("photo")
    order = {wnid: number for number, wnid in enumerate(IMAGENETTE_SYNSETS)}
    with zipfile.ZipFile(data / "val.zip") as archive:
        names = [n for n in archive.namelist() if Path(n).parent.name in order]
        count = len(names) if limit is None else min(limit, len(names))
        names = [names[i * len(names) // count] for i in range(count)]
        for start in tqdm(range(0, count, batch), desc="photo", mininterval=5):
            some = names[start : start + batch]
            pixels = torch.cat([loaded.preprocess(Image.open(io.BytesIO(archive.read(name)))) for name in some])
            yield torch.tensor([order[Path(n).parent.name] for n in some]), loaded.model(pixels).logits.argmax(dim=1)


def sentiment_pairs(
    data: Path, *, split: str = "dev", limit: int | None = None, batch: int = 32
) -> Iterator[tuple[Tensor, Tensor]]:
    """True and guessed classes of the sentences of a split."""
    loaded = zoo.load("sentiment")
    texts, labels = read_sst2(data / f"{split}.tsv", limit=limit)
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for start in tqdm(range(0, len(texts), batch), desc=split, mininterval=5):
        some = order[start : start + batch]
        logits = loaded.model(**loaded.preprocess([texts[n] for n in some])).logits
        yield torch.tensor([labels[n] for n in some]), logits.argmax(dim=1)


@torch.no_grad()
def confusion(pairs: Iterator[tuple[Tensor, Tensor]], classes: int) -> Tensor:
    """How often each true class (row) was taken for each class (column)."""
    table = torch.zeros(classes, classes, dtype=torch.long)
    for true, guess in pairs:
        table.index_put_((true, guess), torch.ones_like(true), accumulate=True)
    return table


def markdown(table: Tensor, names: tuple[str, ...]) -> str:
    """A confusion table as Markdown, with the share of each class that was found."""
    head = ["true \\ guessed", *names, "found"]
    rows = [
        [name, *(str(int(n)) for n in row), f"{float(row[i] / row.sum()):.1%}"]
        for i, (name, row) in enumerate(zip(names, table, strict=True))
    ]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(title: str, table: Tensor, names: tuple[str, ...]) -> None:
    """Print one accuracy and its confusion table."""
    right, total = int(table.trace()), int(table.sum())
    print(f"{title}: accuracy {right / total:.4f} ({right} of {total})\n\n{markdown(table, names)}\n")


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=zoo.NAMES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="measure only so many examples")
    args = parser.parse_args(arguments)
    names = zoo.load(args.name).class_names
    if args.name == "photo":
        report("photo, Imagenette validation", confusion(photo_pairs(args.data, limit=args.limit), len(names)), names)
        return
    for split in ("dev", "test"):
        table = confusion(sentiment_pairs(args.data, split=split, limit=args.limit), len(names))
        report(f"sentiment, SST-2 {split}", table, names)


if __name__ == "__main__":
    main()
