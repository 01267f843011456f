"""Streams are measured once for each form of input, and again where something changed; what is in memory at once."""

import copy
import gc
import weakref

import pytest
import torch
import transformers
from stream_models import IMAGE_TOKEN, SEQ2SEQ, TABLE, prepared
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vitrail
from vitrail import targets
from vitrail.capture.structure import stream_checks, stream_origins, streams, token_codes
from vitrail.errors import SeamError

TARGET = targets.logit(7, position=4)


@pytest.fixture
def unmeasured(monkeypatch):
    """A switch after which nothing is measured by coded gradients."""

    def refuse(*_, **__):
        raise AssertionError("measured again")

    def switch():
        for module in (streams, stream_checks, stream_origins):
            monkeypatch.setattr(module, "sources", refuse)

    yield switch
    assert token_codes.sources is not refuse


def same(one, other):
    assert one.streams.keys() == other.streams.keys()
    for name, found in one.streams.items():
        assert_close(found.scores, other.streams[name].scores)
        assert found.tokens == other.streams[name].tokens
        assert found.provenance.get("assumed") == other.streams[name].provenance.get("assumed")


def test_other_words_of_the_same_form_are_not_measured_again(unmeasured):
    model, inputs = prepared(TABLE["bart"])
    vitrail.explain(model, inputs, "gae", TARGET)
    other = {**inputs, "input_ids": inputs["input_ids"].flip(1), "decoder_input_ids": inputs["decoder_input_ids"] + 1}
    alone = vitrail.explain(copy.deepcopy(model), other, "gae", TARGET)
    unmeasured()
    same(vitrail.explain(model, other, "gae", TARGET), alone)
    same(vitrail.explain(model, inputs, "integrated_gradients", TARGET, steps=2), vitrail.explain(model, inputs, "integrated_gradients", TARGET, steps=2))  # fmt: skip  # noqa: E501
    with pytest.raises(AssertionError, match="measured again"):
        vitrail.explain(model, {name: x[:, 1:] for name, x in inputs.items()}, "gae", targets.logit(7, position=3))


def test_a_picture_at_another_place_of_the_text_is_measured_again():
    model, inputs = prepared(TABLE["llava"])
    vitrail.explain(model, inputs, "gae", targets.next_token(7))
    moved = {**inputs, "input_ids": inputs["input_ids"].roll(1, dims=1)}
    assert bool((moved["input_ids"] == IMAGE_TOKEN).any())
    found = vitrail.explain(model, moved, "gae", targets.next_token(7))
    same(found, vitrail.explain(copy.deepcopy(model), moved, "gae", targets.next_token(7)))


class Gate(torch.nn.Module):
    """A text that asks for another one; tokens are mixed before that as far as a gate is open."""

    def __init__(self):
        super().__init__()
        self.words, self.gate = torch.nn.Embedding(40, 16), torch.nn.Parameter(torch.zeros(()))
        self.first, self.second = (torch.nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        self.head = torch.nn.Linear(16, 5)

    def forward(self, input_ids, decoder_input_ids):
        x, y = self.words(decoder_input_ids), self.words(input_ids)
        y = y + self.first(y, y, y)[0]
        y = y + self.gate * y.cumsum(dim=1)
        return self.head((x + self.second(x, y, y)[0]).mean(dim=1))


def test_weights_that_were_written_to_are_measured_again_and_a_refusal_is_kept(unmeasured):
    torch.manual_seed(0)
    model = Gate().double().eval()
    inputs = {"input_ids": torch.randint(4, 40, (2, 7)), "decoder_input_ids": torch.randint(4, 40, (2, 5))}
    assert vitrail.explain(model, inputs, "gae", 3).streams.keys() == {"encoder", "decoder"}
    with torch.no_grad():
        model.gate.fill_(0.5)
    with pytest.raises(SeamError, match="feed more than one row"):
        vitrail.explain(model, inputs, "gae", 3)
    for _ in range(2):
        assert "feed more than one row" in vitrail.explain(model, inputs, target=3).provenance["default"]
        unmeasured()


class Peak(TorchDispatchMode):
    """The most bytes of tensors made inside that are alive at once."""

    def __init__(self):
        super().__init__()
        self.live, self.now, self.most = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            storage = x.untyped_storage() if isinstance(x, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.live and storage.nbytes():
                self.live[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.free, storage._cdata)
        return out

    def free(self, key):
        self.now -= self.live.pop(key, 0)


def peak(run):
    gc.collect()
    with Peak() as found:
        run()
    return found.most


LONG, HEADS = 512, 4


@pytest.mark.slow
@pytest.mark.usefixtures("little_to_search")
@pytest.mark.parametrize(("source", "answer"), [(LONG, 6), (6, LONG)])
def test_no_map_is_kept_after_its_layer(source, answer):
    """A few maps of one layer are alive at once; those of all six long layers would be six maps more."""
    torch.manual_seed(0)
    heads = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    sizes = {**SEQ2SEQ, **heads, "encoder_layers": 6, "decoder_layers": 6, "max_position_embeddings": LONG}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes)).eval()
    inputs = {"input_ids": torch.randint(4, 30, (1, source)), "decoder_input_ids": torch.randint(4, 30, (1, answer))}
    one_map, weight = LONG * LONG * HEADS * 4, model.model.shared.weight

    def plain():
        torch.autograd.grad(model(**inputs, use_cache=False).logits[:, -1, 7].sum(), weight)

    floor = peak(plain)
    for method, maps in (("gae", 4), ("attn_lrp", 1)):
        assert peak(lambda m=method: vitrail.explain(model, inputs, m, targets.next_token(7))) < floor + maps * one_map
