"""The search for the recipe of `consensus` on images: one set of explanations combined in many ways.

Every picture is explained once by every ingredient; all variants (consensus_variants.py, consensus_fine.py) are made of
these. Pets: pixel accuracy, mAP and mIoU of the predicted class. ImageNet: positive and negative perturbation, for the
predicted class and for that of the label. Everything under protocol `chefer`, by the functions of the bench. Where
prediction and label agree the two are the same and are measured once. Of a run that is cut off the file has what was
done; consensus_compare.py makes tables of files.

    python benchmarks/consensus.py -m vit.safetensors --arch vit_tiny_patch16_224 --pets PETS --rows even \
        --imagenet IMAGENET --fold 0 --device cuda --dtype bfloat16 -o vit.json.gz
"""

import argparse
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from consensus_fine import BASES, LOCALISED, MOVES, PERTURBED, Fine, Move, averaged
from consensus_measuring import Loaded, Maps, Measured, explain, load_pictures, localise, perturb, shifted
from consensus_results import Results
from consensus_variants import INGREDIENTS, VARIANTS, Raw

from vitrail.evaluate.bench.opened import Opened, RunSettings, open_data, open_model
from vitrail.evaluate.bench.pictures import Pictures
from vitrail.evaluate.bench.plan import DTYPES, DataSpec, ModelSpec
from vitrail.methods import parse_spec
from vitrail.methods.pixel_maps import grey

ROWS = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}
CHUNK = 8


class Search:
    """What is tried, and the results so far."""

    def __init__(self, given: argparse.Namespace, results: Results) -> None:
        self.results, self.given = results, given
        wanted = re.compile(given.only)
        also = {text: parse_spec(text) for text in given.also}
        self.ingredients = {**INGREDIENTS, **also}
        variants = {**{f"`{text}`": Raw(text) for text in also}, **VARIANTS}
        self.variants = {name: x for name, x in variants.items() if wanted.search(name)}
        self.localised = [fine for fine in LOCALISED if wanted.search(fine.name)]
        self.perturbed = [fine for fine in PERTURBED if wanted.search(fine.name)]

    def explained(self, batch: Pictures, classes: tuple[int, ...], names: set[str]) -> dict[str, torch.Tensor]:
        """The ingredients of these names."""
        with self.results.clock("explanations"):
            return explain(batch, classes, {name: self.ingredients[name] for name in sorted(names)})

    def patches(self, batch: Pictures, classes: tuple[int, ...], *, ordered: bool) -> Maps:
        """The maps of all variants of patches; those that remove pixels in the same order together, if asked for."""
        found = self.explained(batch, classes, set().union(*(x.needs for x in self.variants.values())))
        groups: dict = {}
        for name, variant in self.variants.items():
            groups.setdefault(variant.order if ordered else variant, []).append(name)
        for variant, names in groups.items():
            yield names, variant(found)

    def fine(self, batch: Pictures, classes: tuple[int, ...], wanted: list[Fine]) -> Maps:
        """The maps of pixels."""
        moves = {move for fine in wanted for move in MOVES[fine.moves]}
        needs = set().union(*(BASES[fine.base].needs for fine in wanted))
        found: dict[Move, dict[str, torch.Tensor]] = {
            move: self.explained(shifted(batch, *move), classes, needs) for move in sorted(moves)
        }
        guide, size = grey(batch.inputs), (batch.images.shape[2], batch.images.shape[3])
        smooth = {
            key: averaged(BASES[key[0]], MOVES[key[1]], found, size) for key in {(x.base, x.moves) for x in wanted}
        }
        for fine in wanted:
            yield [fine.name], fine.finish(smooth[fine.base, fine.moves], guide)


def read(
    opened: Opened, settings: RunSettings, spec: DataSpec, given: argparse.Namespace, rows: str
) -> Iterator[Loaded]:
    """The pictures in batches, read by several threads ahead of the batch that is asked for."""
    dataset = open_data(spec)[ROWS[rows]]
    dataset = dataset if given.limit is None else dataset.spread(given.limit)
    chunks = [dataset[start : start + CHUNK] for start in range(0, len(dataset), CHUNK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        held: list[Loaded] = []
        for loaded in pool.map(partial(load_pictures, opened, settings, masks=spec.name == "pets"), chunks):
            held.append(loaded)
            if sum(map(len, held)) >= given.batch:
                yield Loaded.joined(held)
                held = []
        if held:
            yield Loaded.joined(held)


def on_pets(search: Search, batches: Iterator[Loaded]) -> None:
    """Localisation of the predicted class: first all variants of patches, then those of pixels."""
    kept = []
    for loaded in batches:
        kept.append(loaded)
        maps = search.patches(loaded.pictures, loaded.predicted, ordered=False)
        search.results.add("pets", loaded.keys, localise(loaded, maps, search.results.clock))
    search.results.finished("pets")
    for loaded in kept if search.localised else []:
        maps = search.fine(loaded.pictures, loaded.predicted, search.localised)
        search.results.add("pets, fine", loaded.keys, localise(loaded, maps, search.results.clock))
    search.results.finished("pets, fine")


def on_imagenet(search: Search, batches: Iterator[Loaded]) -> None:
    """Perturbation, explaining the predicted class and that of the label: variants of patches, then of pixels."""
    kept = []
    for loaded in batches:
        kept.append(loaded)
        both(search, loaded, partial(search.patches, ordered=True), "")
    search.results.finished("imagenet")
    for loaded in kept if search.perturbed else []:
        both(search, loaded, partial(search.fine, wanted=search.perturbed), ", fine")
    search.results.finished("imagenet, fine")


def both(search: Search, loaded: Loaded, make, kind: str) -> None:
    """Both classes of a batch; the label's is explained where it is not the predicted one."""
    clock = search.results.clock
    predicted = perturb(loaded.pictures, loaded.predicted, make(loaded.pictures, loaded.predicted), clock)
    label: Measured = {name: {order: list(x) for order, x in found.items()} for name, found in predicted.items()}
    rows = [i for i, (p, known) in enumerate(zip(loaded.predicted, loaded.labels, strict=True)) if p != known]
    if rows:
        some, classes = loaded.pictures.take(rows), tuple(loaded.labels[i] for i in rows)
        for name, found in perturb(some, classes, make(some, classes), clock).items():
            for order, values in found.items():
                for place, row in enumerate(rows):
                    label[name][order][row] = values[place]
    search.results.add(f"predicted{kind}", loaded.keys, predicted)
    search.results.add(f"label{kind}", loaded.keys, label)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--imagenet", help="folder with labels.csv")
    parser.add_argument("--fold", type=int)
    parser.add_argument("--pets", help="folder")
    parser.add_argument("--rows", choices=ROWS, default="even", help="of Pets")
    parser.add_argument("--limit", type=int, help="pictures of each set, at even distances")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="of the perturbed passes; bfloat16 on a GPU")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--forward-batch", type=int, default=1000)
    parser.add_argument("--only", default="", help="a regular expression: variants whose names have it")
    parser.add_argument("--also", action="append", default=[], help="one more published method, such as tis or dix")
    parser.add_argument("-o", "--out", type=Path, help=".json or .json.gz: the values of every picture")
    return parser.parse_args()


def main() -> None:
    """Run the search and print its table."""
    given = arguments()
    dtype = given.dtype or ("float32" if given.device == "cpu" else "bfloat16")
    settings = RunSettings(given.device, DTYPES[dtype], given.forward_batch)
    about = {name: str(x) if isinstance(x, Path) else x for name, x in vars(given).items()}
    about |= {name: Path(about[name]).name for name in ("model", "imagenet", "pets", "out") if about[name]}
    results = Results({**about, "dtype": dtype, "torch": torch.__version__}, given.out, given.device)
    opened = open_model(ModelSpec(given.model, given.arch), given.device)
    search = Search(given, results)
    results.recipes = {name: repr(x) for name, x in search.variants.items()}
    if given.pets:
        on_pets(search, read(opened, settings, DataSpec("pets", given.pets), given, given.rows))
    if given.imagenet:
        options = {} if given.fold is None else {"fold": given.fold}
        on_imagenet(search, read(opened, settings, DataSpec("imagenet", given.imagenet, options), given, "all"))
    print(results.table())


if __name__ == "__main__":
    main()
