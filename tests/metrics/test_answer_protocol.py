"""The protocol `answers`: contexts with known passages, ablations as the model reads them, and what is measured."""

import math
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import tiny
from torch.testing import assert_close

from vitrail.evaluate import answers
from vitrail.evaluate.answers import Ablations, Question, recall
from vitrail.evaluate.data import contexts
from vitrail.methods.context_cite import kept_sources

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # seconds are measured there
from answers_measured import HELD_OUT_SEED, AnswerMeasures, ablations_of, by_method, difference, measure


def test_a_needle_stands_in_the_sentence_that_is_gold():
    for seed in range(5):
        context = contexts.needle(seed, sentences=9, needles=3)
        (place,) = context.gold
        assert context.value in context.sentences[place]
        assert sum("magic number" in one for one in context.sentences) == 3
        assert context.question.split(" of ")[1].split("?")[0] in context.sentences[place]


def test_a_chain_of_variables_leads_from_the_question_to_the_value():
    for seed in range(5):
        context = contexts.variables(seed, sentences=10, steps=3)
        name = context.question.split("VAR ")[1].split("?")[0]
        for place in reversed(context.gold):
            said = context.sentences[place].removesuffix(".").split()
            assert said[1] == name
            name = said[3]
        assert name == context.value


@pytest.fixture(scope="module")
def question():
    ids = torch.randint(3, 60, (14,), generator=torch.Generator().manual_seed(3))
    return Question(ids, 11, 14, ((1, 3), (3, 6), (6, 8), (8, 10)), gold=(1,), value=(3, 5))


def test_an_ablation_is_the_text_without_its_sentences(question):
    model, keep = tiny("hf_llama"), torch.tensor([[True, False, True, False], [True, True, True, True]])
    found = answers.scores_without(model, question, keep)
    for some, value in zip(keep, found, strict=True):
        cut = [
            i for i in range(14) if all(k or not a <= i < b for k, (a, b) in zip(some, question.sources, strict=True))
        ]
        logits = model(question.ids[cut][None]).logits[0].log_softmax(dim=1)
        said = question.ids[-3:]
        assert_close(value, logits[-4:-1].gather(1, said[:, None]).sum().double())


def test_scores_that_predict_the_ablations_have_the_score_one(question):
    keep = kept_sources(4, 40, HELD_OUT_SEED)
    truth = torch.tensor([0.5, 3.0, -1.0, 0.2], dtype=torch.float64)
    known = Ablations(keep, keep.double() @ truth, 0.0)
    tokens = torch.zeros(14)
    for (a, b), score in zip(question.sources, truth.tolist(), strict=True):
        tokens[a:b] = score / (b - a)
    found = measure(tiny("hf_llama"), question, lambda model, asked: tokens, known)
    assert found.lds == pytest.approx(1.0)
    assert found.reciprocal_rank == 1.0
    assert found.recall == 0.5  # two gold tokens, one place among the best 10 % of nine
    assert measure(tiny("hf_llama"), question, lambda model, asked: -tokens, known).lds == pytest.approx(-1.0)
    assert set(found.row()) == {"lds", "drop@1", "drop@3", "kept@1", "kept@3", "recall@10%", "mrr", "seconds"}


def test_removing_and_keeping_the_best_sentences_is_measured_on_the_model(question):
    model = tiny("hf_llama")
    known = ablations_of(model, question, 4)
    found = measure(model, question, answers.by_position, known, ks=(1, 4))
    without_last = torch.tensor([[True, True, True, False]])
    assert found.drop[1] == pytest.approx(known.whole - float(answers.scores_without(model, question, without_last)))
    assert found.kept[4] == pytest.approx(0.0, abs=1e-9)


def test_every_method_of_the_table_gives_one_score_for_each_token(question):
    for name in ("gae", "ifr", "context_cite"):
        options = {"ablations": 6} if name == "context_cite" else {}
        found = by_method(name, **options)(tiny("hf_llama"), question)
        assert found.shape == (14,)
        assert bool(found.isfinite().all())


def test_equal_scores_predict_nothing(question):
    known = Ablations(kept_sources(4, 20, HELD_OUT_SEED), torch.arange(20.0).double(), 0.0)
    assert measure(tiny("hf_llama"), question, lambda model, asked: torch.zeros(14), known).lds == 0.0


def test_recall_counts_gold_tokens_among_the_best_of_the_context():
    scores = torch.zeros(30)
    scores[[5, 6, 29]] = 1.0  # the last is no part of the context
    assert recall(scores, ((0, 20),), (5, 6)) == 1.0
    assert recall(scores, ((0, 20),), (5, 7)) == 0.5


def test_a_paired_bootstrap_sees_a_small_steady_difference():
    theirs = torch.randn(60, generator=torch.Generator().manual_seed(0)).tolist()
    mean, low, high = difference([x + 0.1 for x in theirs], theirs)
    assert low > 0
    assert mean == pytest.approx(0.1)
    assert high >= mean
    assert all(math.isnan(x) for x in difference([math.nan], [1.0]))
    assert math.isnan(AnswerMeasures(0.0).row()["lds"])
