"""A forward that writes into a parameter or into a large buffer is refused before the write, however it writes."""

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import vitrail
from vitrail.capture.shadow import pass_context, shadow
from vitrail.capture.writes import SharedMemory
from vitrail.errors import VitrailError

IDS = torch.tensor([[1, 5, 9, 2, 4], [1, 7, 8, 4, 2]])
LARGE = 1_100_000
"""Float32 numbers of more than 4 MiB."""


class Plain(nn.Module):
    """A small classifier of texts with a large buffer and a parameter that is no weight."""

    def __init__(self, write):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 3)
        self.register_buffer("big", torch.zeros(LARGE // 10, 10))
        self.attribute = torch.zeros(LARGE)
        self.nested = {"caches": [torch.zeros(LARGE)]}
        self.counter = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.trained = nn.Parameter(torch.zeros(3))
        self.leaf = torch.zeros(3, requires_grad=True)
        self.write = write
        self.eval()

    def forward(self, ids):
        states = self.encoder(self.embed(ids))
        type(self).__dict__["write_now"](self, states)
        return self.head(states[:, 0])

    def write_now(self, states):
        self.write(self, states)


def tensors(model):
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    return {**named, "attribute": model.attribute, "nested": model.nested["caches"][0], "leaf": model.leaf}


def state(model):
    """Values, versions and places of all tensors of a model."""
    found = {name: (x, x.data_ptr(), x._version) for name, x in tensors(model).items()}
    return found, {name: x.detach().clone() for name, x in tensors(model).items()}


def check_unchanged(model, before):
    places, values = before
    now, _ = state(model)
    for name, (x, place, version) in places.items():
        assert now[name][0] is x, name
        assert now[name][1:] == (place, version), name
        assert torch.equal(x.detach(), values[name]), name


def add(name):
    def write(model, states):
        with torch.no_grad():
            found = getattr(model, name)
            found += 1

    return write


def add_to_data(name):
    def write(model, states):
        getattr(model, name).data.add_(1)

    return write


def exchange(name):
    def write(model, states):
        getattr(model, name).data = getattr(model, name).data + 1

    return write


def slice_of(model, states):
    model.big[:5, : states.shape[1]] = states[0, :, 0].detach()


def view_of(model, states):
    model.big.view(-1)[3:6].data.copy_(torch.ones(3))


def into_out(model, states):
    torch.add(torch.ones(LARGE), 1, out=model.attribute)


def detached(model, states):
    model.trained.detach().mul_(0).add_(2)


def nested(model, states):
    model.nested["caches"][0].data[2:4] += 1


def foreach(model, states):
    torch._foreach_add_([model.counter.data, model.trained.data], 1.0)


def through_array(model, states):
    model.trained.detach().numpy()[0] = 5


def through_array_of_buffer(model, states):
    model.attribute.numpy()[0] = 5


def under_inference(model, states):
    with torch.inference_mode():
        model.counter.data.add_(1)


def set_memory(model, states):
    with torch.no_grad():
        model.counter.set_(torch.ones(3))


def initialise(model, states):
    nn.init.ones_(model.counter)


def from_vector(model, states):
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.ones(3), [model.counter])


WRITES = {
    **{f"{name} +=": add(name) for name in ("big", "attribute", "counter", "trained", "leaf")},
    **{f"{name}.data +=": add_to_data(name) for name in ("big", "attribute", "counter", "trained", "leaf")},
    **{f"{name}.data =": exchange(name) for name in ("counter", "trained", "leaf")},
    **{
        one.__name__: one
        for one in (
            slice_of, view_of, into_out, detached, nested, foreach, through_array, through_array_of_buffer,
            under_inference, set_memory, initialise, from_vector,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_forward_that_writes_into_the_model_is_refused_before_it_writes(write):
    model = Plain(write)
    before = state(model)
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(VitrailError, match="writes into"):
            vitrail.explain(model, IDS, "gae", target=1)
        check_unchanged(model, before)


METHODS = ("consensus", "integrated_gradients", "attn_lrp", "rollout", "leave_one_out", "grad_cam", "attcat", "ifr")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("write", ["big.data +=", "counter.data +=", "trained.data ="])
def test_it_is_refused_for_every_kind_of_method(method, write):
    model = Plain(WRITES[write])
    before = state(model)
    with pytest.raises(VitrailError):
        vitrail.explain(model, IDS, method, target=1)
    check_unchanged(model, before)


@pytest.mark.parametrize(
    "call", [vitrail.record, vitrail.structure, lambda model, ids: vitrail.prepare(model, ids, "gae")(ids)]
)
def test_it_is_refused_at_every_door(call):
    for write in ("big.data +=", "counter.data ="):
        model = Plain(WRITES[write])
        before = state(model)
        with pytest.raises(VitrailError):
            call(model, IDS)
        check_unchanged(model, before)


def test_a_buffer_whose_memory_is_exchanged_stays_the_models_own():
    model = Plain(exchange("big"))
    before = state(model)
    found = vitrail.explain(model, IDS, "gae", 1)
    check_unchanged(model, before)
    quiet = vitrail.explain(Plain(lambda model, states: None), IDS, "gae", 1)
    assert torch.equal(found.scores, quiet.scores)


def test_reading_through_data_and_arrays_is_no_write():
    def read(model, states):
        assert model.counter.data.sum() == model.attribute.numpy()[:3].sum() == 0
        small = model.counter.detach().clone().numpy()
        small[0] = 1

    model = Plain(read)
    before = state(model)
    for _ in range(2):
        found = vitrail.explain(model, IDS, "gae", 1)
    check_unchanged(model, before)
    assert torch.equal(found.scores, vitrail.explain(Plain(lambda model, states: None), IDS, "gae", 1).scores)


def test_an_embedding_that_renormalises_its_weights_is_refused():
    model = Plain(lambda model, states: None)
    model.embed.max_norm = 0.1
    before = state(model)
    with pytest.raises(VitrailError, match=r"writes into the parameter Embedding\.weight"):
        vitrail.explain(model, IDS, "gae", 1)
    check_unchanged(model, before)


def test_a_hook_of_the_user_that_writes_is_refused():
    model = Plain(lambda model, states: None)
    model.encoder.register_forward_hook(lambda module, args, out: module.layers[0].linear1.bias.data.add_(1))
    before = state(model)
    with pytest.raises(VitrailError, match=r"writes into the parameter Linear\.bias"):
        vitrail.explain(model, IDS, "gae", 1)
    check_unchanged(model, before)


class LaterBase(Plain):
    """Writes where a text is longer, or where it holds a word."""

    def __init__(self, when):
        super().__init__(None)
        self.when = when

    def forward(self, ids):
        if self.when(ids):
            self.bump()
        return self.head(self.encoder(self.embed(ids))[:, 0])


class Later(LaterBase):
    def bump(self):
        raised(self.counter)


def raised(parameter):
    parameter.data += 1


@pytest.mark.parametrize("when", [lambda ids: ids.shape[1] > 5, lambda ids: bool((ids == 13).any())])
def test_a_write_that_only_some_inputs_lead_to_is_refused_too(when):
    model, other = Later(when), torch.tensor([[1, 5, 9, 13, 4, 6, 3]])
    before = state(model)
    for ids in (IDS, IDS):
        vitrail.explain(model, ids, "gae", 1)
    with pytest.raises(VitrailError, match=r"writes into the parameter Later\.counter"):
        vitrail.explain(model, other, "gae", 1)
    same = other[:, :5].repeat(2, 1) if not when(IDS) and when(other[:, :5]) else other
    with pytest.raises(VitrailError, match="writes into"):
        vitrail.explain(model, same, "gae", 1)
    check_unchanged(model, before)


def test_threads_that_infer_meanwhile_see_no_write():
    model, stop, seen = Plain(WRITES["trained.data +="]), threading.Event(), []

    def watch():
        while not stop.is_set():
            seen.append(float(model.trained.detach().abs().sum() + model.big.view(-1)[:9].abs().sum()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(3):
            with pytest.raises(VitrailError):
                vitrail.explain(model, IDS, "gae", 1)
    finally:
        stop.set()
        watcher.join()
    assert len(seen) > 1
    assert set(seen) == {0.0}


def test_passes_are_watched_once_for_each_form_of_inputs_and_again_when_the_model_changes(monkeypatch):
    model, entered = Plain(lambda model, states: None), []
    own = vitrail.capture.shadow.refusing
    monkeypatch.setattr("vitrail.capture.shadow.refusing", lambda *a, **k: entered.append(1) or own(*a, **k))
    vitrail.explain(model, IDS, "gae", 1)
    assert entered
    entered.clear()
    vitrail.explain(model, IDS, "gae", 1)
    assert not entered
    vitrail.explain(model, IDS[:, :4], "gae", 1)
    assert entered
    vitrail.explain(model, IDS, "gae", 1)
    entered.clear()
    model.head.label = 3  # a setting decides what a forward does
    vitrail.explain(model, IDS, "gae", 1)
    assert entered


def test_a_watched_pass_gives_the_same_logits_bit_for_bit():
    model = Plain(lambda model, states: None)
    plain = model(IDS)
    with shadow(model) as own, pass_context(own, (IDS,), {}):
        watched = own(IDS)
    assert torch.equal(plain, watched)


def set_gradient(model):
    model.trained.grad = torch.ones(3)


def zero_gradient(model):
    model.zero_grad(set_to_none=False)


def forget_gradient(model):
    model.zero_grad()


def run_backward(model):
    with torch.enable_grad():
        (model.trained**2).sum().backward()


def freeze(model):
    model.embed.weight.requires_grad_(requires_grad=False)


def unset_requires_grad(model):
    model.trained.requires_grad = False


def hook_gradient(model):
    model.trained.register_hook(lambda gradient: 2 * gradient)


GRADIENT_CHANGES = (
    set_gradient, zero_gradient, forget_gradient, run_backward, freeze, unset_requires_grad, hook_gradient,
)  # fmt: skip


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("change", GRADIENT_CHANGES)
def test_a_forward_that_changes_gradients_of_the_model_is_refused(change, graded):
    model = Plain(lambda model, states: change(model))
    if graded:
        for x in model.parameters():
            x.grad = torch.full_like(x, 2.0)
    before = [(x.grad, x.requires_grad) for x in model.parameters()]
    nothing_to_change = change in (zero_gradient, forget_gradient) and not graded
    for _ in range(2):
        with nullcontext() if nothing_to_change else pytest.raises(VitrailError, match="changes the gradient"):
            vitrail.explain(model, IDS, "gae", target=1)
        for x, (gradient, required) in zip(model.parameters(), before, strict=True):
            assert x.grad is gradient
            assert x.requires_grad == required
            assert not x._backward_hooks
            assert gradient is None or torch.equal(gradient, torch.full_like(x, 2.0))


def test_gradients_inside_of_a_forward_that_change_nothing_are_explained():
    def read(model, states):
        with torch.enable_grad():
            torch.autograd.grad((model.trained**2).sum(), model.trained)
        model.trained.requires_grad = True

    model = Plain(read)
    assert torch.equal(
        vitrail.explain(model, IDS, "gae", 1).scores,
        vitrail.explain(Plain(lambda model, states: None), IDS, "gae", 1).scores,
    )


@pytest.mark.parametrize("graded", [False, True])
def test_a_module_that_the_forward_converts_is_converted_in_the_shadow_alone(graded):
    """As routers of mixtures of experts are, which run in float32."""

    class Converts(Plain):
        def forward(self, ids):
            states = self.encoder(self.embed(ids))
            self.head = self.head.to(torch.float32)
            return self.head(states[:, 0].to(torch.float32))

    model = Converts(lambda model, states: None).double()
    plain = [x.detach().clone() for x in model.parameters()]
    for x in model.parameters() if graded else ():
        x.grad = torch.full_like(x, 2.0)
    before = {name: (x, x.data_ptr(), x.dtype, x.grad) for name, x in model.named_parameters()}
    found = [vitrail.explain(model, IDS, method, 1).scores for method in ("gae", "consensus", "gae")]
    assert torch.equal(found[0], found[2])
    for (name, x), copied in zip(model.named_parameters(), plain, strict=True):
        assert (x, x.data_ptr(), x.dtype, x.grad) == before[name]
        assert torch.equal(x, copied)
        assert not graded or torch.equal(x.grad, torch.full_like(x, 2.0))


def test_memory_that_a_model_gives_back_while_it_runs_is_not_taken_for_a_parameters():
    model = Plain(lambda model, states: None)
    shared = SharedMemory(list(model.named_parameters()), list(model.modules()))
    place = model.trained.untyped_storage()._cdata
    model.trained.data = torch.ones(3)
    others = [torch.zeros(3) for _ in range(200)]
    assert place not in [x.untyped_storage()._cdata for x in others]
    assert not any(shared.holds(x) for x in others)
