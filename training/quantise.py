"""Put a trained model into the package: 8-bit weights, configuration, vocabulary and their hashes.

python -m training.quantise photo DIR        # DIR: the folder `model` that training wrote
python -m training.quantise sentiment DIR --vocabulary vocab.txt
"""

import argparse
import hashlib
import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from vitrail.models.zoo.files import HASHES, dequantise, quantise

WEIGHTS = Path(__file__).parent.parent / "src" / "vitrail" / "models" / "zoo" / "weights"
UNSHIPPED = ("dtype", "transformers_version", "_name_or_path")  # they describe the trained file, not the shipped one


def ship(name: str, trained: Path, into: Path, *, vocabulary: Path | None = None) -> dict[str, float]:
    """Write the files of one model; its size in bytes and the relative error of its weights."""
    folder = into / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = load_file(trained / "model.safetensors")
    small = quantise(weights)
    save_file(small, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)  # safetensors lets only the owner read
    config = json.loads((trained / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in UNSHIPPED}
    (folder / "config.json").write_text(json.dumps(kept, indent=2) + "\n")
    if vocabulary is not None:
        (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())
    write_hashes(into)
    wide = dequantise(small)
    error = sum(float((wide[n] - w.float()).square().sum()) for n, w in weights.items())
    power = sum(float(w.float().square().sum()) for w in weights.values())
    return {"bytes": sum(f.stat().st_size for f in folder.iterdir()), "relative error": (error / power) ** 0.5}


def write_hashes(into: Path) -> None:
    """Write the SHA-256 of every file beside the table of hashes."""
    shipped = sorted(file for file in into.rglob("*") if file.is_file() and file.name != HASHES)
    table = {f.relative_to(into).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest() for f in shipped}
    (into / HASHES).write_text(json.dumps(table, indent=2) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("photo", "sentiment"))
    parser.add_argument("trained", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--into", type=Path, default=WEIGHTS)
    args = parser.parse_args(arguments)
    facts = ship(args.name, args.trained, args.into, vocabulary=args.vocabulary)
    print(f"{args.name}: {facts['bytes']:,.0f} bytes, relative error of the weights {facts['relative error']:.5f}")


if __name__ == "__main__":
    main()
