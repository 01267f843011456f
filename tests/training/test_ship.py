import hashlib
import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from training import quantise, run
from training.evaluate import confusion, markdown


def test_shipping_writes_small_weights_and_the_hash_of_every_file(tmp_path):
    trained, into = tmp_path / "trained", tmp_path / "weights"
    trained.mkdir()
    save_file({"matrix": torch.randn(80, 90).half(), "bias": torch.randn(80).half()}, trained / "model.safetensors")
    (trained / "config.json").write_text('{"hidden_size": 90, "dtype": "float16"}')
    (trained / "words.txt").write_text("a\nb\n")
    facts = quantise.ship("sentiment", trained, into, vocabulary=trained / "words.txt")
    assert load_file(into / "sentiment" / "model.safetensors")["matrix"].dtype == torch.int8
    assert json.loads((into / "sentiment" / "config.json").read_text()) == {"hidden_size": 90}
    assert 0 < facts["relative error"] < 0.02
    table = json.loads((into / "sha256.json").read_text())
    assert set(table) == {f"sentiment/{name}" for name in ("config.json", "model.safetensors", "vocab.txt")}
    for name, digest in table.items():
        assert hashlib.sha256((into / name).read_bytes()).hexdigest() == digest


def test_the_confusion_table_counts_true_classes_in_rows():
    pairs = iter([(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])), (torch.tensor([0]), torch.tensor([1]))])
    table = confusion(pairs, 2)
    assert table.tolist() == [[1, 2], [0, 1]]
    assert "| cat | 1 | 2 | 33.3% |" in markdown(table, ("cat", "dog"))


def test_the_learning_rate_rises_in_a_line_and_falls_to_zero():
    share = [run.warm_cosine(step, warmup=4, steps=12) for step in range(13)]
    assert share[:4] == [0.25, 0.5, 0.75, 1.0]
    assert share[8] == pytest.approx(0.5)
    assert share[12] == pytest.approx(0.0)
    assert all(later <= earlier for earlier, later in pairwise(share[3:]))
