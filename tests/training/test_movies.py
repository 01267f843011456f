import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from training import movies
from training.eraser import read_eraser

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "very", ".", "'", "t", "n"]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, several wait for each other in every tiny product
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=12,
    )
    BertModel(config).save_pretrained(tmp_path / "init")
    (tmp_path / "init" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "docs").mkdir()
    for word in ("bad", "good"):
        for n in range(3):
            (tmp_path / "docs" / f"{word}_{n}.txt").write_text(f"a very {word} film .\nvery\u00a0{word} .\n" * (n + 1))
    rows = [
        {"annotation_id": f"{word}_{n}.txt", "classification": name, "evidences": [], "query": "?", "query_type": None}
        for word, name in (("bad", "NEG"), ("good", "POS"))
        for n in range(3)
    ]
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def arguments(folder, *more):
    where = ["--data", str(folder), "--init", str(folder / "init"), "--out", str(folder / "out")]
    return [*where, "--device", "cpu", "--batch", "2", *more]


def test_a_few_steps_write_a_model_that_names_its_classes(folder):
    movies.main(arguments(folder, "--epochs", "2", "--steps", "1"))
    out = folder / "out"
    log = (out / "movies.log").read_text()
    assert "6 train, 6 val, 6 test" in log
    assert set(json.loads((out / "evaluation.json").read_text())) == {"val", "test"}
    assert json.loads((out / "training.json").read_text())["longest"] == 12  # no more than the encoder reads
    model = AutoModelForSequenceClassification.from_pretrained(out / "model")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert AutoTokenizer.from_pretrained(out / "model").model_max_length == 12
    assert torch.load(out / "checkpoint.pt")["epoch"] == 2


def test_what_is_easy_is_learned_and_resuming_a_finished_run_only_measures(folder):
    movies.main(arguments(folder, "--epochs", "12", "--lr", "1e-2"))
    found = json.loads((folder / "out" / "evaluation.json").read_text())
    assert found == {"val": 1.0, "test": 1.0}
    (folder / "out" / "evaluation.json").unlink()
    movies.main(arguments(folder, "--epochs", "12", "--lr", "1e-2", "--resume"))
    assert json.loads((folder / "out" / "evaluation.json").read_text()) == found
    assert (folder / "out" / "movies.log").read_text().count("epoch 12:") == 1


def test_a_review_is_its_tokens_with_single_spaces(folder):
    texts, labels = read_eraser(folder, "val")
    assert texts[0] == "a very bad film . very bad ."
    assert labels == [0, 0, 0, 1, 1, 1]


def test_a_limit_takes_reviews_of_both_classes(folder):
    assert read_eraser(folder, "train", limit=2)[1] == [0, 1]
    assert len(read_eraser(folder, "train", limit=99)[0]) == 6
