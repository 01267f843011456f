"""Warm calls on several streams: one pass of the model, and what a first call of a fresh copy gives, bit for bit."""

import copy

import pytest
import torch
from any_models import hf
from stream_models import SEQ2SEQ, TABLE, prepared
from torch import nn

import vitrail
from vitrail import targets

CASES = ("t5", "bart", "mbart", "swin", "swin_v2", "crossvit", "tnt", "llava", "blip2", "qwen2_vl_two")


@pytest.fixture
def counted(monkeypatch):
    """Counts the passes of a model and of its shadows."""

    def count(model):
        passes, own = [], type(model).forward
        monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: passes.append(1) or own(*args, **kwargs))
        return passes

    return count


def alike(one, other):
    """Whether two explanations are equal, bit for bit."""
    parts = ({"": x, **x.streams} for x in (one, other))
    mine, others = ({n: (x.scores, x.own, x.readout) for n, x in part.items()} for part in parts)
    assert mine.keys() == others.keys()
    for name, tensors in mine.items():
        for x, y in zip(tensors, others[name], strict=True):
            assert (x is None) == (y is None), name
            assert x is None or torch.equal(x, y), name
    assert one.provenance.get("assumed") == other.provenance.get("assumed")


def fresh(model, inputs, target, method="tokentm"):
    """What a model that nothing is known of gives."""
    return vitrail.explain(copy.deepcopy(model), inputs, method, target)


def others(inputs):
    """Inputs of the same form with other numbers: texts without their markers, and pictures, turned round."""

    given = inputs if isinstance(inputs, dict) else {"": inputs}
    pictures = any(x.is_floating_point() for x in given.values())
    changed = {
        n: x.flip(-1) if x.is_floating_point() or (n.endswith("ids") and not pictures) else x for n, x in given.items()
    }
    return changed if isinstance(inputs, dict) else changed[""]


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_is_known_gives_what_a_fresh_copy_gives_in_one_pass(name, counted):
    case = TABLE[name]
    model, inputs = prepared(case)
    changed = others(inputs)
    before = [fresh(model, x, case.target) for x in (inputs, changed)]
    passes = counted(model)
    alike(vitrail.explain(model, inputs, "tokentm", case.target), before[0])
    for given, wanted in zip((inputs, changed), before, strict=True):
        passes.clear()
        alike(vitrail.explain(model, given, "tokentm", case.target), wanted)
        assert len(passes) == 1
    passes.clear()
    both = vitrail.compare(model, inputs, methods=["gae", "tokentm"], target=case.target)
    assert len(passes) == 1
    alike(both["tokentm"], before[0])
    alike(both["gae"], fresh(model, inputs, case.target, "gae"))


def test_what_gae_has_made_known_is_measured_again_for_tokentm_once(counted):
    model, inputs = prepared(TABLE["t5"])
    passes, target = counted(model), targets.logit(7, position=4)
    vitrail.explain(model, inputs, "gae", target)
    counts = []
    for _ in range(2):
        passes.clear()
        vitrail.explain(model, inputs, "tokentm", target)
        counts.append(len(passes))
    assert counts[1] == 1 < counts[0]


@pytest.mark.parametrize("name", ["bart", "swin_v2"])
@pytest.mark.parametrize("write", ["in place", "by loading", "unseen"])
def test_written_weights_are_read_anew(name, write):
    case = TABLE[name]
    model, inputs = prepared(case)
    old = vitrail.explain(model, inputs, "tokentm", case.target)
    vitrail.explain(model, inputs, "tokentm", case.target)
    torch.manual_seed(3)
    more = {n: x + 0.1 * torch.randn_like(x) if x.is_floating_point() else x for n, x in model.state_dict().items()}
    if write == "by loading":
        model.load_state_dict(more)
    for n, x in model.named_parameters():
        if write == "in place":
            x.detach().copy_(more[n])
        elif write == "unseen":  # torch does not count this
            x.data = x.data.clone()
            x.data.copy_(more[n])
    found = vitrail.explain(model, inputs, "tokentm", case.target)
    assert not torch.equal(found.scores, old.scores)
    alike(found, fresh(model, inputs, case.target))
    alike(vitrail.explain(model, inputs, "tokentm", case.target), found)


def test_weights_that_torch_does_not_see_written_are_read_in_a_known_pass(counted):
    model, inputs = prepared(TABLE["t5"])
    target, passes = targets.logit(7, position=4), counted(model)
    old, _ = (vitrail.explain(model, inputs, "tokentm", target) for _ in range(2))
    for x in model.parameters():
        x.data.mul_(1.3)
    passes.clear()
    found = vitrail.explain(model, inputs, "tokentm", target)
    assert len(passes) == 1
    assert not torch.equal(found.scores, old.scores)
    alike(found, fresh(model, inputs, target))


def test_other_lengths_and_targets():
    model, inputs = prepared(TABLE["t5"])
    for target in (targets.logit(7, position=4), targets.logit(9, position=2), targets.continuation(2, 5)):
        for cut in (9, 6, 9):
            given = {n: x[:, :cut] if n in ("input_ids", "attention_mask") else x for n, x in inputs.items()}
            alike(vitrail.explain(model, given, "tokentm", target), fresh(model, given, target))


def test_answer_spans_are_read_off_one_pass(counted):
    torch.manual_seed(0)
    model = hf("BartForQuestionAnswering", **SEQ2SEQ)().double().eval()
    inputs = TABLE["bart"].inputs(2)
    passes, wanted = counted(model), fresh(model, inputs, targets.answer_span())
    for _ in range(2):
        passes.clear()
        alike(vitrail.explain(model, inputs, "tokentm", targets.answer_span()), wanted)
    assert len(passes) == 1


def test_padding_of_a_known_form_is_that_of_the_call():
    model, inputs = prepared(TABLE["bart"])
    target = targets.logit(7, position=4)
    for first in (9, 6, 7):
        mask = (torch.arange(inputs["input_ids"].shape[1]) < first).long().expand_as(inputs["input_ids"])
        given = {**inputs, "attention_mask": mask}
        for _ in range(2):
            alike(vitrail.explain(model, given, "tokentm", target), fresh(model, given, target))


def test_frozen_weights_are_known_again(counted):
    model, inputs = prepared(TABLE["llava"])
    target = TABLE["llava"].target
    model.requires_grad_(requires_grad=False)
    passes, wanted = counted(model), fresh(model, inputs, target)
    for _ in range(2):
        passes.clear()
        alike(vitrail.explain(model, inputs, "tokentm", target), wanted)
    assert len(passes) == 1


class Added(torch.nn.Module):
    """Two texts, of which one asks for the other; sums are written by `add`."""

    def __init__(self, add):
        super().__init__()
        self.words, self.head, self.add = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 5), add
        self.maps = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def attend(self, x, y):
        heads = [f(t).unflatten(-1, (2, 8)).transpose(1, 2) for f, t in zip(self.maps, (x, y, y), strict=False)]
        given = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return self.maps[3](given)

    def forward(self, input_ids, decoder_input_ids):
        x, y = self.words(decoder_input_ids), self.words(input_ids)
        y = self.add(y, self.attend(y, y))
        return self.head(self.add(x, self.attend(x, y)).mean(dim=1))


def written(x, y):
    x = x.clone()
    x += y
    return x


@pytest.mark.parametrize(("add", "count"), [(torch.add, 1), (lambda x, y: x[:] + y, 1), (written, 2)])
def test_sums_that_no_module_shows_are_watched_and_those_in_place_are_measured_in_every_call(add, count, counted):
    torch.manual_seed(0)
    model = Added(add).double().eval()
    inputs = {"input_ids": torch.randint(4, 40, (2, 7)), "decoder_input_ids": torch.randint(4, 40, (2, 5))}
    passes, wanted = counted(model), fresh(model, inputs, 3)
    for _ in range(2):
        passes.clear()
        alike(vitrail.explain(model, inputs, "tokentm", 3), wanted)
    assert len(passes) == count


class GatedByWords(Added):
    """What attention gives is halved, before or after its projection, where the first text has a large word."""

    def __init__(self, place):
        super().__init__(torch.add)
        self.place, self.gate = place, torch.ones(())

    def attend(self, x, y):
        heads = [f(t).unflatten(-1, (2, 8)).transpose(1, 2) for f, t in zip(self.maps, (x, y, y), strict=False)]
        given = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return self.maps[3](given * self.gate) if self.place == "before" else self.maps[3](given) * self.gate

    def forward(self, input_ids, decoder_input_ids):
        self.gate = torch.where(input_ids.amax(dim=1) > 20, 0.5, 1.0).double()[:, None, None]
        return super().forward(input_ids, decoder_input_ids)


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_gate_that_was_open_when_a_model_was_measured_is_read_in_a_known_pass(place, counted):
    torch.manual_seed(0)
    model = GatedByWords(place).double().eval()
    inputs = {"input_ids": torch.arange(5, 12)[None], "decoder_input_ids": torch.arange(9, 4, -1)[None]}
    halved = {**inputs, "input_ids": inputs["input_ids"] + 20}
    passes, wanted = counted(model), [fresh(model, x, 3) for x in (inputs, halved)]
    for given, one in zip((inputs, halved, inputs), (*wanted, wanted[0]), strict=True):
        alike(vitrail.explain(model, given, "tokentm", 3), one)
    passes.clear()
    alike(vitrail.explain(model, halved, "tokentm", 3), wanted[1])
    assert len(passes) == 1


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_plain_projections_are_read_where_they_are_stored(name, monkeypatch):
    from vitrail.capture.structure import stream_updates

    model, inputs = prepared(TABLE[name])
    derived, own = [], stream_updates._derivative
    monkeypatch.setattr(stream_updates, "_derivative", lambda *args: derived.append(1) or own(*args))
    for asked in (True, False):
        vitrail.explain(model, inputs, "tokentm", TABLE[name].target)
        assert bool(derived) is asked
        derived.clear()


class TwoAnswers(nn.Module):
    """Two encoders of texts of their own: the first class is read from one of them, the second from the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.left, self.right = (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=True), 2)
            for _ in range(2)
        )
        self.head = nn.Linear(16, 1)

    def forward(self, input_ids, decoder_input_ids):
        both = (self.left(self.words(input_ids))[:, 0], self.right(self.words(decoder_input_ids))[:, 0])
        return torch.cat([self.head(x) for x in both], dim=1)


@pytest.mark.parametrize("method", ["gae", "rollout"])
def test_a_class_that_reads_one_of_two_sequences_is_told_by_a_pass_whose_results_are_cut(method, counted):
    model = TwoAnswers().double().eval()
    inputs = {"input_ids": torch.arange(2, 8)[None], "decoder_input_ids": torch.arange(5, 14)[None]}
    passes = counted(model)
    vitrail.explain(model, inputs, method, 1)
    passes.clear()
    found = vitrail.explain(model, inputs, method, 0)
    assert len(passes) == 3  # one that is known, one whose results are cut, and one that is walked over
    alike(found, vitrail.explain(copy.deepcopy(model), inputs, method, 0))
    assert bool((found.streams["decoder"].scores == 0).all())
    assert bool(found.streams["text"].scores.any() if "text" in found.streams else found.scores.any())
