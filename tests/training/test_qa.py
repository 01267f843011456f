import json

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertConfig, BertModel, MPNetConfig, MPNetModel

from training import finetune, qa
from training.answers import answer, best_spans, exact, f1, normalise, score
from training.backbone import load_backbone, load_tokenizer
from training.encoded import Encoded, collate
from training.questions import NOWHERE, Answer, Question, common_answer, make_windows, read_squad, token_span

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "wrote", "it", "?", "mary", "shelley", "in", "1818", "."]
CONTEXT = "  Mary Shelley wrote it in 1818."
TINY = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}


def squad(*rows):
    return {"version": "1.1", "data": [{"title": "x", "paragraphs": [{"context": CONTEXT, "qas": list(rows)}]}]}


def row(*answers, **more):
    given = [{"text": text, "answer_start": CONTEXT.index(text)} for text in answers]
    return {"id": "7", "question": " Who wrote it?", "answers": given, **more}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, several wait for each other in every tiny product
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, **TINY)
    BertModel(config).save_pretrained(tmp_path / "init")
    (tmp_path / "init" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    rows = [row("Mary Shelley"), row("1818", "1818", "in 1818"), row(is_impossible=True), row("Mary"), row("in")]
    (tmp_path / "data.json").write_text(json.dumps(squad(*rows)))
    return tmp_path


def arguments(folder, out="out", init="init"):
    data = str(folder / "data.json")
    where = ["--train", data, data, "--test", data, "--init", str(folder / init), "--out", str(folder / out)]
    return [
        *where,
        "--epochs",
        "2",
        "--batch",
        "3",
        "--device",
        "cpu",
        "--seed",
        "3",
        "--longest",
        "14",
        "--stride",
        "4",
    ]


def test_a_few_steps_write_a_model_with_its_tokenizer_a_log_and_the_scores(folder):
    qa.main([*arguments(folder), "--steps", "2"])
    out = folder / "out"
    log = (out / "qa.log").read_text()
    assert "train: 8 questions" in log
    assert "data: 4 questions" in log
    assert log.count("epoch 1:") == log.count("epoch 2:") == log.count("finished:") == 1
    assert set(json.loads((out / "evaluation.json").read_text())) == {"data EM", "data F1"}
    assert json.loads((out / "training.json").read_text())["schedule"]["seed"] == 3
    model = AutoModelForQuestionAnswering.from_pretrained(out / "model")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    assert tokenizer.model_max_length == 20
    assert model(**tokenizer("who?", "Mary.", return_tensors="pt")).start_logits.shape == (1, 7)


def test_a_resumed_run_equals_one_that_was_never_stopped(folder, monkeypatch):
    qa.main(arguments(folder, "whole"))
    run_epoch = finetune.run_epoch

    def stop_in_the_second(job, optimiser, epoch, args):
        if epoch == 1:
            raise KeyboardInterrupt
        return run_epoch(job, optimiser, epoch, args)

    with monkeypatch.context() as patch:
        patch.setattr(finetune, "run_epoch", stop_in_the_second)
        with pytest.raises(KeyboardInterrupt):
            qa.main(arguments(folder, "parts"))
    qa.main([*arguments(folder, "parts"), "--resume"])
    assert "resumed after epoch 1" in (folder / "parts" / "qa.log").read_text()
    whole, parts = (load_file(folder / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert_close(parts, whole, rtol=0, atol=0)


def test_another_encoder_needs_no_other_code(folder):
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *WORDS[5:]]
    config = MPNetConfig(vocab_size=len(words), max_position_embeddings=22, **TINY)
    MPNetModel(config).save_pretrained(folder / "mpnet")
    (folder / "mpnet" / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "mpnet" / "tokenizer_config.json").write_text('{"tokenizer_class": "MPNetTokenizer"}')
    qa.main([*arguments(folder, init="mpnet"), "--steps", "1"])
    assert "MPNetForQuestionAnswering" in (folder / "out" / "qa.log").read_text()
    assert load_tokenizer(folder / "mpnet").model_max_length == 20


def test_a_folder_without_the_encoder_is_refused(folder):
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, **TINY | {"num_hidden_layers": 2})
    (folder / "init" / "config.json").write_text(config.to_json_string())
    with pytest.raises(ValueError, match=r"lacks 16 weights .* bert\.encoder\.layer\.1"):
        load_backbone(AutoModelForQuestionAnswering, folder / "init")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_backbone(AutoModelForQuestionAnswering, folder)


def test_questions_without_an_answer_are_left_out(folder):
    questions = read_squad(folder / "data.json")
    assert [len(q.answers) for q in questions] == [1, 3, 1, 1]
    assert questions[0] == Question("Who wrote it?", CONTEXT, (Answer("Mary Shelley", 2),))
    assert common_answer(questions[1]) == Answer("1818", CONTEXT.index("1818"))
    assert len(read_squad(folder / "data.json", limit=2)) == 2


def test_an_answer_that_is_not_where_it_should_be_is_named(tmp_path):
    wrong = row("Mary")
    wrong["answers"][0]["answer_start"] = 0
    (tmp_path / "data.json").write_text(json.dumps(squad(wrong)))
    with pytest.raises(ValueError, match=r"question 7: the answer is 'Mary', the context has '  Ma'"):
        read_squad(tmp_path / "data.json")


@pytest.mark.parametrize("longest", [10, 11, 40])
def test_every_window_that_holds_the_answer_points_at_it(folder, longest):
    tokenizer, questions = load_tokenizer(folder / "init"), read_squad(folder / "data.json")
    windows = make_windows(tokenizer, questions, longest=longest, stride=2)
    targets = windows.encoded.targets
    held = set()
    for number, question in enumerate(windows.question):
        span = (int(targets["start_positions"][number]), int(targets["end_positions"][number]))
        assert len(windows.encoded.ids[number]) <= longest
        if span != NOWHERE:
            held.add(question)
            ids = windows.encoded.ids[number][span[0] : span[1] + 1]
            assert tokenizer.decode(ids) == common_answer(questions[question]).text.lower()
    assert held == {0, 1, 2, 3}
    assert (len(windows.question) > 4) == (longest < 40)


def test_a_part_of_a_word_gets_the_whole_token_and_a_cut_answer_none():
    offsets = [(0, 0), (0, 3), (0, 0), (2, 6), (7, 14), (15, 20), (0, 0)]
    assert token_span(offsets, range(3, 6), Answer("helley", 8)) == (4, 4)
    assert token_span(offsets, range(3, 6), Answer("Shelley wrote", 7)) == (4, 5)
    assert token_span(offsets, range(3, 5), Answer("Shelley wrote", 7)) == NOWHERE
    assert token_span(offsets, range(4, 6), Answer("Mary Shelley", 2)) == NOWHERE


def test_the_best_span_is_the_best_of_all_that_are_allowed():
    torch.manual_seed(1)
    starts, ends = torch.randn(3, 9), torch.randn(3, 9)
    inside = torch.zeros(3, 9, dtype=torch.bool)
    inside[:, 2:8] = True
    starts[0, 3] = ends[0, 6] = starts[1, 0] = ends[1, 0] = starts[2, 6] = ends[2, 4] = (
        9  # too long, outside, backwards
    )
    for b, (best, first, last) in enumerate(zip(*best_spans(starts, ends, inside, 3), strict=True)):
        allowed = [(float(starts[b, i] + ends[b, j]), i, j) for i in range(2, 8) for j in range(i, min(i + 3, 8))]
        assert (int(first), int(last)) == max(allowed)[1:]
        assert_close(float(best), max(allowed)[0])


@pytest.mark.parametrize("word", ["Mary", "1818"])
def test_the_answer_is_read_from_the_surest_window(folder, word):
    tokenizer, questions = load_tokenizer(folder / "init"), read_squad(folder / "data.json", limit=1)
    windows = make_windows(tokenizer, questions, longest=10, stride=2)
    wanted = tokenizer.convert_tokens_to_ids(word.lower())

    class Pointer(torch.nn.Module):
        def forward(self, input_ids, **_):
            logits = (input_ids == wanted).float() + 10 * (input_ids == tokenizer.sep_token_id)
            return type("Out", (), {"start_logits": logits, "end_logits": logits})

    assert answer(Pointer(), questions, windows, longest=30, device="cpu") == [word]


def test_scores_are_those_of_squad():
    assert normalise("  The Cat's, hat!") == "cats hat"
    assert exact("the Cat", "a cat.") == 1
    assert f1("the big cat sat", "a cat") == pytest.approx(2 * (1 / 3) * 1 / (1 / 3 + 1))
    assert f1("dog", "cat") == 0
    question = Question("?", "x", (Answer("cat", 0), Answer("big cat", 0)))
    assert score(["Big cat", "dog"], [question, question]) == (0.5, 0.5)


def test_padding_has_the_models_own_number_and_is_masked():
    encoded = Encoded([[5, 6], [7, 8, 9]], [[0, 1], [0, 0, 1]], {"labels": torch.tensor([1, 0])}, padding=4)
    batch = collate(encoded, [0, 1], "cpu", learn=True)
    assert batch["input_ids"].tolist() == [[5, 6, 4], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert batch["labels"].tolist() == [1, 0]
    assert "labels" not in collate(encoded, [0], "cpu", learn=False)
