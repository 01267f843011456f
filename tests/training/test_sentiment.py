import json

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from training import sentiment
from training.sentences import Sentences, pad, read_reviews, read_sst2, shuffled_batches

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "very", "and", '"']


@pytest.fixture
def folder(tmp_path):
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40
    )
    BertModel(config).save_pretrained(tmp_path / "init")
    (tmp_path / "init" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    rows = ["label\tsentence", '1\t" a good film', "0\tbad", "1\tvery good", "0\ta bad and very bad film"]
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "reviews").mkdir()
    (tmp_path / "reviews" / "one.txt").write_text("a very good film\nbad film\na very good film\na bad bad film\n")
    return tmp_path


def arguments(folder, epochs):
    fixed = ["--data", folder, "--init", folder / "init", "--reviews", folder / "reviews", "--out", folder / "out"]
    return [str(x) for x in [*fixed, "--teachers", 2, "--epochs", epochs, "--steps", 2, "--device", "cpu"]]


def test_a_few_steps_write_a_model_a_log_and_a_checkpoint_to_go_on_from(folder):
    sentiment.main(arguments(folder, 1))
    before = (folder / "out" / "teacher0.pt").stat().st_mtime_ns
    sentiment.main([*arguments(folder, 2), "--resume"])
    out = folder / "out"
    assert (out / "teacher0.pt").stat().st_mtime_ns == before  # a finished teacher is not trained again
    assert torch.load(out / "checkpoint.pt")["epoch"] == 2
    log = (out / "sentiment.log").read_text()
    assert "4 sentences and 2 unlabelled" in log
    assert log.count("epoch 1:") == log.count("epoch 2:") == 1
    assert json.loads((out / "training.json").read_text())["teachers"] == 2
    assert load_file(out / "model" / "model.safetensors")["classifier.weight"].shape == (2, 24)


def test_quotes_in_a_sentence_are_kept(folder):
    texts, labels = read_sst2(folder / "train.tsv")
    assert texts[0] == '" a good film'
    assert labels == [1, 0, 1, 0]


def test_short_and_repeated_lines_of_reviews_are_left_out(folder):
    assert read_reviews(folder / "reviews") == ["a very good film", "a bad bad film"]


def test_every_sentence_is_in_exactly_one_batch():
    sentences = Sentences([[1] * (1 + n % 7) for n in range(23)], torch.zeros(23, dtype=torch.long))
    batches = shuffled_batches(sentences, 4, seed=3)
    assert sorted(n for batch in batches for n in batch) == list(range(23))
    assert batches == shuffled_batches(sentences, 4, seed=3)
    assert batches != shuffled_batches(sentences, 4, seed=4)


def test_padding_is_masked():
    batch = pad(Sentences([[5, 6], [7, 8, 9]], torch.zeros(2)), [0, 1], "cpu")
    assert batch["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_the_loss_is_zero_for_the_teachers_own_opinion_without_labels():
    config = sentiment.SentimentConfig()
    logits = torch.randn(5, 2)
    wanted = (logits / config.temperature).softmax(dim=1)
    found = sentiment.distil_loss(logits, wanted, torch.full((5,), -1), config)
    assert_close(found, torch.tensor(0.0), rtol=0, atol=1e-6)


def test_unlabelled_sentences_do_not_count_in_the_labels_part():
    config = sentiment.SentimentConfig()
    logits = torch.randn(4, 2)
    wanted = (logits / config.temperature).softmax(dim=1)
    found = sentiment.distil_loss(logits, wanted, torch.tensor([1, -1, -1, 0]), config)
    log_probs = logits.log_softmax(dim=1)
    expected = -config.label_weight * (log_probs[0, 1] + log_probs[3, 0]) / 4
    assert_close(found, expected, rtol=0, atol=1e-6)
