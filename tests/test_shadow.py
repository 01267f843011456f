"""The copy of the modules that is explained: it follows the model in everything and gives nothing back to it."""

import functools
import gc
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from applying import cheaply
from tiny_models import BERT, MODELS, tiny
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from vitrail.capture.shadow import in_precision, shadow
from vitrail.errors import VitrailError
from vitrail.models.taking import every_module

IDS = torch.tensor([[1, 5, 9, 2, 4], [1, 7, 8, 4, 2]])


class Plain(nn.Module):
    """A small classifier of texts; `head` is what the variants below reach in other ways."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.5, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.5), nn.Linear(12, 3))
        self.prepare()
        self.double().train()

    def prepare(self):
        pass

    def read(self, x):
        return self.head(x)

    def forward(self, ids):
        return self.read(self.encoder(self.embed(ids))[:, 0])


class InList(Plain):
    def prepare(self):
        self.parts = [{"head": (self.head,)}]

    def read(self, x):
        return self.parts[0]["head"][0](x)


class InSet(Plain):
    def prepare(self):
        self.parts = {self.head}
        self.names = {self.head: "head"}

    def read(self, x):
        (head,) = self.parts
        assert self.names[head] == "head"
        return head(x)


class BoundMethod(Plain):
    def prepare(self):
        self.call = self.head.forward

    def read(self, x):
        return self.call(x)


class Lambda(Plain):
    def prepare(self):
        self.call = lambda x: self.head(x)

    def read(self, x):
        return self.call(x)


class DefaultArgument(Plain):
    def prepare(self):
        self.call = lambda x, head=self.head: head(x)

    def read(self, x):
        return self.call(x)


class Partial(Plain):
    def prepare(self):
        self.call = functools.partial(lambda head, x: head(x), self.head)

    def read(self, x):
        return self.call(x)


class Nested(Plain):
    def prepare(self):
        def outer():
            def inner(x):
                return self.head(x)

            return lambda x: inner(x)

        self.calls = {"head": [outer()]}

    def read(self, x):
        return self.calls["head"][0](x)


class Recursive(Plain):
    def prepare(self):
        def deeper(x, depth):
            return self.head(x) if depth == 0 else deeper(x, depth - 1)

        self.call = deeper

    def read(self, x):
        return self.call(x, 3)


class Wrapped(Plain):
    def prepare(self):
        original = self.head.forward

        @functools.wraps(original)
        def forward(x):
            return original(x)

        self.head.forward = forward


class Parent(Plain):
    def prepare(self):
        object.__setattr__(self.head, "parent", self)  # a plain attribute, no child

    def read(self, x):
        return self.head.parent.head(x)


class WeakParent(Plain):
    def prepare(self):
        self.back = [weakref.ref(self), weakref.proxy(self)]

    def read(self, x):
        return (self.back[0]().head(x) + self.back[1].head(x)) / 2


class Slotted(Plain):
    __slots__ = ("hidden",)

    def prepare(self):
        object.__setattr__(self, "hidden", [self.head])

    def read(self, x):
        return self.hidden[0](x)


class Computed(Plain):
    @property
    def reader(self):
        return self.head

    def __getattr__(self, name):
        return super().__getattr__("head") if name == "tail" else super().__getattr__(name)

    def read(self, x):
        return (self.reader(x) + self.tail(x)) / 2


class HoldingObject(Plain):
    def prepare(self):
        self.state = SimpleNamespace(inner=SimpleNamespace(head=self.head, call=lambda x: self.head(x)))

    def read(self, x):
        return (self.state.inner.head(x) + self.state.inner.call(x)) / 2


class Circle:
    """An ordinary object that knows the model and itself."""

    __slots__ = ("__dict__", "__hidden")

    def __init__(self, model):
        self.me, self.__hidden = self, model
        self.bound, self.closed = self.call, lambda x: self.call(x)

    def call(self, x):
        return self.__hidden.head(x)


class Circular(Plain):
    def prepare(self):
        self.circle = Circle(self)

    def read(self, x):
        return (self.circle.me.bound(x) + self.circle.closed(x)) / 2


class NotOurs(Plain):
    """Its own `__deepcopy__` would give the model itself."""

    def __deepcopy__(self, memo):
        return self


class Uncopyable(Plain):
    def prepare(self):
        self.lock, self.file, self.steps = threading.Lock(), open(__file__), (i for i in range(3))  # noqa: SIM115
        self.log = SimpleNamespace(lock=threading.RLock(), stream=torch.Stream("cpu"))

    def read(self, x):
        with self.lock, self.log.lock:
            return self.head(x)


class Parametrized(Plain):
    def prepare(self):
        nn.utils.parametrizations.weight_norm(self.head[0])
        nn.utils.parametrizations.spectral_norm(self.head[2])


class OldNorms(Plain):
    def prepare(self):
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(self.head[0])
        nn.utils.spectral_norm(self.head[2])


class Aliased(Plain):
    def prepare(self):
        self.again, self.body = self.head, self.encoder.layers

    def read(self, x):
        return self.again(x)


class Doubled(Plain):
    """One module called twice: the copy is one module too."""

    def prepare(self):
        self.twice = nn.ModuleList([self.head[0], self.head[0]])

    def read(self, x):
        return self.head(self.twice[1](self.twice[0](x)))


VARIANTS = [
    Plain, InList, InSet, BoundMethod, Lambda, DefaultArgument, Partial, Nested, Recursive, Wrapped, Parent, WeakParent,
    Slotted, Computed, HoldingObject, Circular, NotOurs, Uncopyable, Parametrized, OldNorms, Aliased, Doubled,
]  # fmt: skip


def state_of(model):
    """Everything of a model that must stay: identities, values, flags and hooks."""
    return [
        (
            id(module), module.training, [(name, id(value)) for name, value in vars(module).items()],
            [(n, id(x), x._version, x.requires_grad, x.grad) for n, x in module._parameters.items() if x is not None],
            [(n, id(x), x.clone().tolist()) for n, x in module._buffers.items() if x is not None],
            [(n, list(v)) for n, v in vars(module).items() if n.endswith("_hooks")],
        )
        for module in every_module(model)
    ]  # fmt: skip


def plain_scores(model, method="gae"):
    """The explanation of the model itself, in evaluation mode and without any way round: `head` is called."""
    twin = Plain()
    twin.load_state_dict(model.state_dict(), strict=False)
    return vitrail.explain(twin, IDS, method, 1).scores


@pytest.mark.parametrize("kind", VARIANTS)
def test_a_shadow_computes_what_the_model_computes_in_evaluation_mode_and_leaves_it_as_it_was(kind):
    model = kind()
    with torch.no_grad():
        expected = model.eval()(IDS)
    model.train()
    before, random = state_of(model), torch.get_rng_state()
    with shadow(model) as own, torch.no_grad():
        assert own is not model
        assert {id(m) for m in every_module(own)}.isdisjoint(id(m) for m in every_module(model))
        assert [id(p) for p in own.parameters()] == [id(p) for p in model.parameters()]
        assert torch.equal(own(IDS), expected)
    for method, options in cheaply(["gae", "attn_lrp", "auto", "integrated_gradients"]):
        vitrail.explain(model, IDS, method, 1, **options)
    assert state_of(model) == before
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("kind", [v for v in VARIANTS if v not in (Parametrized, OldNorms, Doubled)])
@pytest.mark.parametrize("method", ["gae", "attn_lrp"])
def test_the_way_a_model_reaches_its_modules_does_not_change_an_explanation(kind, method):
    model = kind()
    assert_close(vitrail.explain(model, IDS, method, 1).scores, plain_scores(model, method))


class Global(Plain):
    def read(self, x):
        return GLOBAL_HEAD(x)


GLOBAL_HEAD = nn.Linear(12, 3).double()


class Cached(Plain):
    def prepare(self):
        self.call = functools.lru_cache(self.head)

    def read(self, x):
        return self.call(x)


def closed_over():
    class Inner(Plain):
        def read(self, x):
            return model.head(x)

    model = Inner()
    return model


def global_head():
    model = Global()
    model.head = GLOBAL_HEAD
    return model


@pytest.mark.parametrize("build", [Cached, closed_over, global_head])
def test_a_module_that_would_be_run_instead_of_its_copy_is_refused_by_name(build):
    with pytest.raises(VitrailError, match=r"(?s)of the model.*[Rr]each the module through self"):
        vitrail.explain(build(), IDS, "gae", 1)


@pytest.mark.parametrize("trace", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(2, 4))])
def test_torchscript_is_refused_with_words(trace):
    model = Plain()
    model.extra = trace(nn.Linear(4, 4))
    with pytest.raises(VitrailError, match="TorchScript"):
        vitrail.explain(model, IDS, "gae", 1)


def test_a_lazy_module_is_explained_once_it_has_a_shape_and_refused_before():
    model = Plain()
    model.head = nn.LazyLinear(3, dtype=torch.float64)
    with pytest.raises(VitrailError, match="Run the model once"):
        vitrail.explain(model, IDS, "gae", 1)
    model.eval()(IDS)
    assert vitrail.explain(model, IDS, "gae", 1).scores.shape == IDS.shape


class Counting(Plain):
    """Writes into its buffers and attributes with every call, as caches and statistics do."""

    def prepare(self):
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.register_buffer("view", self.calls.view(1))
        self.seen, self.plain, self.array = [], torch.zeros(3), np.zeros(3)
        self.log, self.count, self.own = self.seen.append, 0, SimpleNamespace(calls=0)
        self.draw = torch.Generator().manual_seed(1)

    def read(self, x):
        self.calls += 1
        self.plain += 1
        self.array += 1
        self.count += 1
        self.own.calls += 1
        self.log(x.shape)
        torch.rand(2, generator=self.draw)
        assert float(self.view) == float(self.calls)  # they share memory, and still do in the copy
        return self.head(x)


def test_what_a_forward_writes_into_buffers_and_attributes_stays_with_the_shadow():
    model = Counting()
    vitrail.compare(model, IDS, ["gae", "attn_lrp"], 1)
    assert float(model.calls) == float(model.view) == float(model.plain.sum()) == float(model.array.sum()) == 0
    assert (model.seen, model.count, model.own.calls) == ([], 0, 0)
    assert torch.equal(model.draw.get_state(), torch.Generator().manual_seed(1).get_state())


def test_a_write_into_a_tensor_too_large_to_be_copied_is_said():
    model = Counting()
    model.plain = torch.zeros(3, 1_000_000)
    with pytest.raises(VitrailError, match=r"Counting.plain, a tensor of 11 MiB"):
        vitrail.explain(model, IDS, "gae", 1)


def test_a_large_buffer_that_is_only_read_is_shared():
    model = Plain()
    model.register_buffer("table", torch.zeros(2_000_000))
    with shadow(model) as own:
        assert own.table.data_ptr() == model.table.data_ptr()
    vitrail.explain(model, IDS, "gae", 1)


def double_head(model):
    model.head[2].weight.data *= 2


def new_head(model):
    torch.manual_seed(5)
    model.head = nn.Linear(12, 3).double()


def new_parameter(model):
    torch.manual_seed(6)
    model.head[0].weight = nn.Parameter(torch.randn(12, 12, dtype=torch.float64))


def new_hook(model):
    model.head[0].register_forward_hook(lambda module, args, out: out * 3)


def other_state(model):
    torch.manual_seed(8)
    model.load_state_dict({name: torch.randn_like(x) for name, x in model.state_dict().items()})


def single_precision(model):
    model.float()


def new_class(model):
    model.head[0].forward = lambda x: 2 * x


CHANGES = [double_head, new_head, new_parameter, new_hook, other_state, single_precision, new_class]


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_of_the_model_the_changed_model_is_explained(change):
    model, fresh = Plain(), Plain()
    first = vitrail.explain(model, IDS, "gae", 1).scores
    change(model)
    change(fresh)
    found, expected = (vitrail.explain(m, IDS, "gae", 1).scores for m in (model, fresh))
    assert torch.equal(found, expected)
    assert not torch.equal(found.double(), first)


class Settings(Plain):
    def prepare(self):
        self.config = SimpleNamespace(scale=0.7, deep={"inner": [SimpleNamespace(scale=0.3)]})
        self.factor = 1.5
        self.array = np.array([0.5])
        self.register_buffer("order", torch.tensor([0, 1]))

    def forward(self, ids):
        x = self.encoder(self.embed(ids) * self.factor * self.config.scale * float(self.array[0]))
        return self.read(x[:, int(self.order[0])] * self.config.deep["inner"][0].scale)


SETTINGS = [
    lambda m: setattr(m, "factor", 2.5),
    lambda m: setattr(m.config, "scale", 1.7),
    lambda m: setattr(m.config.deep["inner"][0], "scale", 900.0),
    lambda m: m.array.fill(2.0),
    lambda m: m.order.copy_(torch.tensor([1, 0])),
]


@pytest.mark.parametrize("change", SETTINGS)
def test_a_changed_setting_counts_at_once(change):
    model, fresh = Settings(), Settings()
    first = vitrail.explain(model, IDS, "gae", 1).scores
    change(model)
    change(fresh)
    found = vitrail.explain(model, IDS, "gae", 1).scores
    assert torch.equal(found, vitrail.explain(fresh, IDS, "gae", 1).scores)
    assert not torch.equal(found, first)


@pytest.mark.parametrize("change", [*SETTINGS[:3], SETTINGS[4], new_head, new_hook])
def test_the_root_of_a_shadow_stays_the_same_object_until_the_structure_changes(change):
    model = Settings()
    with shadow(model) as first, shadow(model) as other:  # at the same time: another
        assert other is not first
    with shadow(model) as again:
        assert again is first
    change(model)
    with shadow(model) as later:
        assert later is not first
        assert later is not other


class Kept(Plain):
    """Reads numbers, lists and a method of its class, all of which can be exchanged without a new attribute."""

    def prepare(self):
        self.scales, self.others = [0.5, torch.tensor([0.7])], [torch.tensor([2.0])]
        self.steps = nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 12)]).double()
        self.register_buffer("factor", torch.ones(12, dtype=torch.float64))
        self.register_buffer("order", torch.tensor([0, 1]))

    def scale(self, x):
        return x * self.scales[-1] * sum(map(float, self.others))

    def read(self, x):
        for index in self.order.tolist():
            x = self.steps[index](x).tanh()
        return self.head(self.scale(x * self.factor))


def moved_between_lists(model):
    model.others.insert(0, model.scales.pop())


def swapped_modules(model):
    model.steps._modules["0"], model.steps._modules["1"] = model.steps[1], model.steps[0]


QUIET = [
    lambda m: m.factor.data.mul_(torch.linspace(-1, 3, 12)),  # writes through .data and NumPy are not counted
    lambda m: m.factor.numpy().__imul__(np.linspace(-1, 3, 12)),
    lambda m: m.order.numpy().__setitem__(slice(None), [1, 0]),
    lambda m: m.scales[1].data.fill_(-3.0),
    lambda m: setattr(m.steps[0].weight, "data", m.steps[0].weight.data.flip(0)),
    lambda m: setattr(m.steps[0], "__class__", type("Bent", (nn.Linear,), {"forward": lambda self, x: x * 2})),
    lambda m: setattr(m, "__class__", type("Turned", (Kept,), {"scale": lambda self, x: x.flip(1)})),
    moved_between_lists,
    swapped_modules,
]


@pytest.mark.parametrize("change", QUIET)
def test_a_shadow_that_is_used_again_is_a_copy_of_the_model_as_it_is_now(change):
    model, fresh = Kept(), Kept()
    first = [vitrail.explain(model, IDS, "gae", 1).scores for _ in range(2)]
    assert torch.equal(*first)
    change(model)
    change(fresh)
    found = vitrail.explain(model, IDS, "gae", 1).scores
    assert torch.equal(found, vitrail.explain(fresh, IDS, "gae", 1).scores)
    assert not torch.equal(found, first[0])


def test_a_method_that_its_class_exchanges_counts_at_once(monkeypatch):
    model = Kept()
    first = vitrail.explain(model, IDS, "gae", 1).scores
    monkeypatch.setattr(Kept, "scale", torch.compile(lambda self, x: x.flip(1) * 3, backend="eager"))
    found = vitrail.explain(model, IDS, "gae", 1).scores
    assert torch.equal(found, vitrail.explain(Kept(), IDS, "gae", 1).scores)
    assert not torch.equal(found, first)


def test_a_method_of_a_class_that_comes_to_know_a_module_is_refused_at_once(monkeypatch):
    model = Kept()
    vitrail.explain(model, IDS, "gae", 1)
    first = model.steps[0]
    monkeypatch.setattr(Kept, "scale", lambda self, x: first(x))
    with pytest.raises(VitrailError, match="in a way that cannot be copied"):
        vitrail.explain(model, IDS, "gae", 1)


class KeepsStates(Plain):
    def read(self, x):
        self.last = x
        HELD.append(weakref.ref(x))
        return self.head(x)


@pytest.mark.usefixtures("little_to_search")
def test_what_a_forward_keeps_in_its_shadow_is_freed_with_the_call():
    model = KeepsStates()
    for _ in range(3):
        vitrail.explain(model, IDS, "gae", 1)
    gc.collect()
    assert [x() for x in HELD[1:]] == [None] * len(HELD[1:])
    del HELD[1:]


@pytest.mark.usefixtures("little_to_search")
@pytest.mark.parametrize("kind", [Parent, Kept])
def test_a_shadow_dies_with_its_model(kind):
    model = kind()
    vitrail.explain(model, IDS, "gae", 1)
    gone = [weakref.ref(model), weakref.ref(model.head)]
    with shadow(model) as own:
        gone.append(weakref.ref(own))
    del model, own
    gc.collect()
    assert [x() for x in gone] == [None] * 3


class Recorder:
    def __init__(self, model=None):
        self.seen, self.model = [], model

    def hook(self, module, args, out):
        self.seen.append(out.shape)
        return out * 2

    def __call__(self, module, args, out):
        return self.hook(module, args, out)


@pytest.mark.parametrize("which", ["function", "method", "object", "partial", "holder"])
def test_hooks_of_the_user_act_on_explanations_and_keep_reporting(which):
    model = Plain()
    recorder = Recorder(model if which == "holder" else None)
    hook = {
        "function": lambda module, args, out: recorder.hook(module, args, out),
        "method": recorder.hook,
        "object": recorder,
        "partial": functools.partial(Recorder.hook, recorder),
        "holder": recorder.hook,
    }[which]
    handle = model.head[0].register_forward_hook(hook)
    fresh = Plain()
    fresh.head[0].register_forward_hook(lambda module, args, out: out * 2)
    found, expected = (vitrail.explain(m, IDS, "gae", 1).scores for m in (model, fresh))
    assert torch.equal(found, expected)
    told = len(recorder.seen)
    assert told > 0 or which == "holder"  # one that holds the model is copied with it
    model(IDS)
    assert len(recorder.seen) == told + 1
    handle.remove()
    assert torch.equal(vitrail.explain(model, IDS, "gae", 1).scores, vitrail.explain(Plain(), IDS, "gae", 1).scores)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_wrapper_passes_the_call_on_with_its_own_hooks(wrap, hooked, nested):
    model, fresh = Plain(), Plain()
    if nested:
        model.head = wrap(model.head)
    wrapper = model.head if nested else (model := wrap(model))
    if hooked:
        wrapper.register_forward_hook(lambda module, args, out: torch.relu(out))
        (fresh.head if nested else fresh).register_forward_hook(lambda module, args, out: torch.relu(out))
    for method in ("gae", "attn_lrp", "auto"):
        found, expected = (vitrail.explain(m, IDS, method, 1).scores for m in (model, fresh))
        assert torch.equal(found, expected), method


class InsideParallel(Plain):
    """Reaches through a wrapper by the name of what it wraps."""

    def prepare(self):
        self.head = nn.DataParallel(self.head)

    def read(self, x):
        return self.head.module[2](self.head.module[0](x))


def test_a_model_may_reach_through_a_wrapper():
    assert vitrail.explain(InsideParallel(), IDS, "gae", 1).scores.shape == IDS.shape


@pytest.mark.parametrize("older", [False, True], ids=["this_torch", "torch_before_2.15"])
def test_compiled_methods_and_attributes_run_as_they_were_written(older, monkeypatch):
    if older:
        monkeypatch.delattr("torch._dynamo.eval_frame._use_eager_on_nested_compile", raising=False)

    class Compiled(Plain):
        @torch.compile(backend="eager")
        def read(self, x):
            assert not torch.compiler.is_compiling()
            return self.head(x)

    model = Compiled()
    model.encoder.layers[0].forward = torch.compile(model.encoder.layers[0].forward, backend="eager")
    model.encoder.layers[1].compile(backend="eager")
    assert_close(vitrail.explain(model, IDS, "gae", 1).scores, plain_scores(model))


def test_a_deep_and_a_wide_tree_are_copied_without_copying_parameters():
    deep = nn.Linear(2, 2)
    for _ in range(3000):
        deep = nn.Sequential(deep)
    wide = nn.Sequential(*[nn.Linear(2, 2) for _ in range(1000)])
    for model in (deep, wide):
        with shadow(model) as own:
            assert [id(p) for m in every_module(own) for p in m._parameters.values()] == [
                id(p) for m in every_module(model) for p in m._parameters.values()
            ]


def test_a_copy_in_another_precision_converts_plain_tensors_and_puts_everything_back():
    model = Plain().float()
    model.register_buffer("table", torch.ones(2))
    model.plain = torch.ones(2)
    with shadow(model) as own:
        before = state_of(own)
        with in_precision(own, torch.float64):
            assert {x.dtype for x in (*own.parameters(), own.table, own.plain)} == {torch.float64}
        assert state_of(own) == before


def test_tied_weights_stay_one_weight():
    config = transformers.BertConfig(**{**BERT, "tie_word_embeddings": True})
    model = transformers.BertForMaskedLM(config)
    with shadow(model) as own, in_precision(own, torch.float64):
        assert own.cls.predictions.decoder.weight is own.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("name", ["hf_llama", "hf_modernbert", "hf_beit", "timm_eva02", "hf_clip", "torchvision_vit"])
def test_families_are_copied_bit_for_bit(name):
    model, inputs = MODELS[name].build().double(), MODELS[name].inputs()
    model.train()
    run = lambda m: m(inputs) if isinstance(inputs, torch.Tensor) else m(**inputs)  # noqa: E731
    logits = lambda out: getattr(out, "logits_per_image", None) if "clip" in name else getattr(out, "logits", out)  # noqa: E731
    before = state_of(model)
    with shadow(model) as own, torch.no_grad():
        found = logits(run(own))
    assert state_of(model) == before
    with torch.no_grad():
        assert torch.equal(found, logits(run(model.eval())))


model = Plain()  # a global of this name, as in most notebooks


class NamesAnAttributeLikeAGlobal(Plain):
    def prepare(self):
        self.model = self.head

    def read(self, x):
        return self.model(x)


class ReadsAGlobalInAnInnerFunction(Plain):
    def read(self, x):
        return (lambda y: HELD[0] and model.head(y))(x)


HELD = [True]


def test_an_attribute_that_is_named_like_a_global_is_no_global(monkeypatch):
    own = NamesAnAttributeLikeAGlobal().eval()
    monkeypatch.setitem(globals(), "model", own)
    assert_close(vitrail.explain(own, IDS, "gae", 1).scores, vitrail.explain(Plain().eval(), IDS, "gae", 1).scores)


def test_a_global_that_an_inner_function_reads_is_refused(monkeypatch):
    own = ReadsAGlobalInAnInnerFunction().eval()
    monkeypatch.setitem(globals(), "model", own)
    with pytest.raises(VitrailError, match="in a way that cannot be copied"):
        vitrail.explain(own, IDS, "gae", 1)


class Trained(Plain):
    """A model whose weights change while its forward runs."""

    def forward(self, ids):
        found = super().forward(ids)
        with torch.no_grad():
            self.embed.weight.mul_(1.01)
        return found


@pytest.mark.parametrize("method", ["rollout", "gae", "integrated_gradients"])
def test_weights_that_change_meanwhile_are_an_error(method):
    vitrail.explain(Plain(), {"ids": IDS}, method, 1)
    with pytest.raises(VitrailError, match="the weights of the model were changed while it was explained"):
        vitrail.explain(Trained(), {"ids": IDS}, method, 1)


class Noisy(nn.Module):
    """Dropout that stays on in eval mode."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(F.dropout(x, 0.1, training=True))


@pytest.mark.parametrize("method", ["gae", "tokentm", "rollout", "auto", "attn_lrp", "integrated_gradients"])
def test_random_numbers_that_a_model_draws_are_the_callers(method):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32)
    model = Noisy(tiny("hf_vit")).eval()
    before = torch.get_rng_state()
    found = vitrail.explain(model, x, method, 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert "one draw" in found.provenance["random"]
    assert "random" not in vitrail.explain(model.inner, x, method, 1).provenance
