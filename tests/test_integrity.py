"""The model is as it was: every method over every kind of model a user may have, whatever came of the call."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, partial

import numpy as np
import pytest
import torch
from applying import CHEAP, WITH_SOURCES, applying
from PIL import Image
from snapshots import Snapshot, surroundings
from torch import Tensor, nn
from torch.testing import assert_close
from type_checks import unchecked
from wrapped_models import (
    ANATOMIES,
    CASES,
    Case,
    adapted,
    aliased,
    build,
    compiled,
    inputs_of,
    parallel,
    same,
    training,
    with_equal_mlps,
    with_equal_norms,
    with_gradients,
    with_one_mlp,
    with_one_norm,
)

import vitrail
from vitrail.errors import SeamError, TargetError, VitrailError
from vitrail.tools.doctor import examine

pytestmark = pytest.mark.filterwarnings("ignore")
EXACT = {"atol": 1e-9, "rtol": 1e-9}


@pytest.fixture(autouse=True, scope="module")
def _unchecked():
    """Shapes are checked elsewhere; here the checks would take most of the time."""
    with unchecked():
        yield


@pytest.fixture(autouse=True)
def _drawn():
    """Generators in a state that no seed of a library gives."""
    torch.manual_seed(101)
    torch.rand(7)
    random.seed(103)
    np.random.seed(107)


@cache
def methods_of(base: str) -> tuple[str, ...]:
    """Every method that applies to a plain model of this kind."""
    return tuple(applying(build(base), inputs_of(base), ANATOMIES.get(base)))


def split(bases: tuple[str, ...]) -> list[tuple[str, str]]:
    """Every method with the first base it applies to."""
    found: dict[str, str] = {}
    for base in bases:
        found = {**dict.fromkeys(methods_of(base), base), **found}
    return [(base, method) for method, base in found.items()]


def half(name: str) -> list[tuple[str, str]]:
    """Every second method that applies to a case, and the others in the next case."""
    return split(CASES[name].bases)[list(CASES).index(name) % 2 :: 2]


def explained(model: nn.Module, base: str, inputs: dict, method: str, target=1) -> Tensor | str:
    """The scores, or the refusal in words."""
    found = attributed(model, base, inputs, method, target)
    return found if isinstance(found, str) else found.scores


def attributed(model: nn.Module, base: str, inputs: dict, method: str, target=1, **more) -> vitrail.Attribution | str:
    """The attribution, or the refusal in words."""
    options = {} if method == "auto" else CHEAP.get(method, {})
    try:
        return vitrail.explain(model, inputs, method, target, anatomy=ANATOMIES.get(base), **{**options, **more})
    except VitrailError as error:
        return f"{type(error).__name__}: {error}"


def expected(case: Case, base: str, method: str) -> Tensor | str:
    """What the twin of a case gives."""
    return _expected(case.twin, case.around, case.dtype, base, method)


@cache
def _expected(twin, around, dtype, base, method) -> Tensor | str:
    with around():
        return explained(_twin(twin, base), base, inputs_of(base, dtype), method)


def expected_of(case: Case, base: str, method: str, found: vitrail.Attribution | str) -> Tensor | str:
    """What the twin of a case gives by the method and at the level that a result names."""
    if isinstance(found, str) or found.provenance.get("level") != "inputs":
        return expected(case, base, method)
    assert case.refused is not None  # attention can be followed in all other cases
    told = [*found.provenance.get("assumed", []), found.provenance.get("default", "")]
    assert any("should attend once" in words for words in told)
    if "level" not in vitrail.METHODS[found.method].options:  # then a twin cannot be asked for the same
        return found.scores
    with case.around():
        inputs = inputs_of(base, case.dtype)
        return explained_as(_twin(case.twin, base), base, inputs, found)


def explained_as(model: nn.Module, base: str, inputs: dict, found: vitrail.Attribution) -> Tensor | str:
    """What another model gives by the method and the options of a result."""
    other = attributed(model, base, inputs, found.method, **found.options)
    return other if isinstance(other, str) else other.scores


@cache
def _twin(twin, base) -> nn.Module:
    return twin(build(base)).eval()


def differs(found: Tensor | str, wanted: Tensor | str, case: Case, method: str) -> str | None:
    """How a result is not what it should be, in words."""
    if case.refused is not None and isinstance(found, str):
        return None if found.startswith(case.refused) else found
    if isinstance(found, str) or isinstance(wanted, str):
        alike = isinstance(found, str) and isinstance(wanted, str) and found == wanted
        return None if alike else f"{found} instead of {wanted}"
    apart, largest = float((found - wanted).abs().max()), float(wanted.abs().max())
    allowed = case.apart.get(method, 1e-9) * max(largest, 1.0)
    return None if apart <= allowed else f"scores differ by {apart:.2g} of {largest:.2g}"


def logits_in(out: object) -> Tensor:
    """The logits, however a model wraps them."""
    return next((x for name in ("logits", "logits_per_image") if (x := getattr(out, name, None)) is not None), out)


def logits_of(model: nn.Module, inputs: dict) -> Tensor:
    """What the model gives as it stands, dropout drawn the same way every time, statistics put back."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(17)
        logits = logits_in(model(**inputs))
        for buffer, old in buffers:
            buffer.copy_(old)
    return logits


def trained(model: nn.Module, inputs: dict, optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """All parameters after one step of training, dropout drawn the same way every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(19)
        loss = logits_in(model(**inputs)).square().sum()
    if loss.requires_grad:
        loss.backward()
        optimiser.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", CASES)
def test_methods_leave_the_model_as_it_was_and_explain_it_like_a_plain_one(name):
    if name.startswith("adapted"):
        pytest.importorskip("peft")
    case, problems = CASES[name], []
    models = {base: case.model(base) for base in case.bases}
    given = {base: case.inputs(base) for base in case.bases}
    first = case.bases[0]
    optimiser = torch.optim.SGD(models[first].parameters(), lr=0.1)
    logits = logits_of(models[first], case.inputs(first))
    snapshots = {base: Snapshot(models[base], given[base]) for base in case.bases}
    for base, method in half(name):
        before = snapshots[base].from_now()
        with case.around(), case.only():
            inside = surroundings()
            found = attributed(models[base], base, given[base], method)
            after = surroundings()
            problems += [f"{base} {method}: inside, {x}" for x, old in inside.items() if after[x] != old]
        problems += [f"{base} {method}: {change}" for change in before.changes()]
        scores = found if isinstance(found, str) else found.scores
        if (apart := differs(scores, expected_of(case, base, method, found), case, method)) is not None:
            problems.append(f"{base} {method}: {apart}")
    assert problems == []
    assert torch.equal(logits_of(models[first], case.inputs(first)), logits)
    untouched = case.model(first)
    wanted = trained(untouched, case.inputs(first), torch.optim.SGD(untouched.parameters(), lr=0.1))
    start = [parameter.detach().clone() for parameter in models[first].parameters()]
    found = trained(models[first], case.inputs(first), optimiser)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert (name == "frozen") == all(torch.equal(a, b) for a, b in zip(found, start, strict=True))


def test_every_method_meets_the_cases():
    met = Counter(method for name in CASES for _, method in half(name))
    assert set(met) == set(vitrail.METHODS) - WITH_SOURCES
    assert min(met.values()) >= 3


def test_methods_of_one_call_do_not_disturb_each_other():
    """In single precision, since some methods run a copy of the weights in double precision."""
    model, inputs = build("vit").float(), inputs_of("vit", torch.float32)
    methods = [(name, CHEAP.get(name, {})) for name in (*methods_of("vit"), "auto")]
    before = Snapshot(model, inputs)
    found = vitrail.compare(model, inputs, methods, 1)
    assert before.changes() == []
    for (name, _), one in zip(methods, found, strict=True):
        alone = explained(model, "vit", inputs, name)
        assert_close(one.scores, alone, rtol=1e-5, atol=1e-6, msg=partial("{}: {}".format, name))


# Whatever comes of a call


def _raises(logits: Tensor) -> Tensor:
    raise ZeroDivisionError


def _raises_in_the_backward_pass(logits: Tensor) -> Tensor:
    scalar = logits[:, 1].clone()
    if scalar.requires_grad:
        scalar.register_hook(_raises)
    return scalar


@contextmanager
def every_call(hook: Callable[[nn.Module], None]):
    """Call this before any module of this thread runs."""
    thread = threading.get_ident()

    def before(module: nn.Module, args: tuple) -> None:
        if threading.get_ident() == thread:
            hook(module)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


def interrupting(call: int) -> Callable[[nn.Module], None]:
    """The user presses a key at this call of a module."""
    left = [call]

    def interrupt(module: nn.Module) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return interrupt


ENDINGS = {
    "raises": (_raises, None),
    "raises_in_the_backward_pass": (_raises_in_the_backward_pass, None),
    "refused": (99, None),
    "interrupted": (1, 12),
    "interrupted_late": (1, 45),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_call_that_fails_leaves_the_model_as_it_was_and_the_next_one_right(ending):
    target, call = ENDINGS[ending]
    case, problems, failed = CASES["aliased"], [], 0
    models, given = ({base: make(base) for base in case.bases[:2]} for make in (case.model, case.inputs))
    snapshots = {base: Snapshot(models[base], given[base]) for base in models}
    for base, method in split(case.bases[:2]):
        model, inputs, before = models[base], given[base], snapshots[base].from_now()
        try:
            with every_call(same if call is None else interrupting(call)):
                vitrail.explain(model, inputs, method, target, **CHEAP.get(method, {}))
        except (VitrailError, ZeroDivisionError, KeyboardInterrupt):
            failed += 1
        problems += [f"{base} {method}: {change}" for change in before.changes()]
        if apart := differs(explained(model, base, inputs, method), expected(case, base, method), case, method):
            problems.append(f"{base} {method} afterwards: {apart}")
    assert problems == []
    assert failed > {"interrupted_late": 10, "raises_in_the_backward_pass": 20}.get(ending, 30)


def test_not_even_for_a_moment_is_anything_of_the_model_changed():
    case, problems = CASES["aliased"], []
    # In single precision, since some methods run a copy of the weights in double precision.
    models = {base: with_gradients(case.model(base).float()) for base in case.bases}
    for base, method in split(case.bases[:2]):
        model, inputs = models[base], inputs_of(base, torch.float32)
        before, own, calls = Snapshot(model, inputs), {*model.modules()}, 0

        def look(module, before=before, own=own, method=method):
            nonlocal calls
            calls += 1
            if module in own:
                problems.append(f"{method} runs a {type(module).__name__} of the model itself")
            if calls % 11 == 5:
                problems.extend(f"{method} in call {calls}: {change}" for change in before.changes(values=False))

        def target(logits, before=before, method=method):
            problems.extend(f"{method} at the target: {change}" for change in before.changes(values=False))
            return logits[:, 1]

        plain = {"abs_lrp", "grad_eclip"}  # these explain a class, no function of the logits
        with every_call(look):
            explained(model, base, inputs, method, 1 if method in plain else target)
        assert calls > 10, method
    assert problems == []


def test_what_was_once_refused_changed_nothing():
    """One block that all layers share: where it is named as the only block, attention is counted and does not fit."""
    for base, anatomy, error in [("albert", "blocks", "SeamError")]:
        model, inputs = training(build(base)), inputs_of(base)
        before = Snapshot(model, inputs)
        path = "albert.encoder.albert_layer_groups.0.albert_layers"
        given = None if anatomy is None else vitrail.Anatomy(blocks=path, prefix=1, readout="cls")
        with pytest.raises(VitrailError) as caught:
            vitrail.explain(model, inputs, "gae", 1, anatomy=given)
        assert type(caught.value).__name__ == error
        assert before.changes() == []


def test_layers_that_share_one_block_are_explained_where_no_blocks_are_asked_for():
    model, inputs = training(build("albert")), inputs_of("albert")
    before = Snapshot(model, inputs)
    found = vitrail.explain(model, inputs, "rollout", 1, anatomy=ANATOMIES["albert"])
    with torch.no_grad():
        maps = build("albert").eval()
        maps.set_attn_implementation("eager")
        attentions = maps(**inputs, output_attentions=True).attentions
    rows = torch.eye(6, dtype=torch.float64)
    for each in attentions:
        mixed = each.mean(dim=1)[0] + torch.eye(6, dtype=torch.float64)
        rows = (mixed / mixed.sum(dim=1, keepdim=True)) @ rows
    assert_close(found.scores[0], rows[0])
    assert before.changes() == []


# Shared modules, adapters


@pytest.mark.parametrize(
    ("shared", "apart"), [(with_one_norm, with_equal_norms), (with_one_mlp, with_equal_mlps)], ids=["norm", "mlp"]
)
def test_a_recording_keeps_each_block_its_own_states_where_blocks_share_a_module(shared, apart):
    found, wanted = (vitrail.record(wrap(build("vit")), inputs_of("vit"), 1) for wrap in (shared, apart))
    for layer, other in zip(found.layers, wanted.layers, strict=True):
        pairs = [(vars(layer), vars(other)), (vars(layer.stream), vars(other.stream))]
        for mine, theirs in pairs:
            tensors = [name for name, x in theirs.items() if isinstance(x, Tensor)]
            for name in tensors:
                assert_close(mine[name], theirs[name], msg=partial("{} {}: {}".format, layer.index, name))
        assert {"ffn_entering", "attention_normed"} <= {n for n, x in vars(layer.stream).items() if x is not None}


@pytest.mark.parametrize("method", ["rollout", "gae", "grad_cam", "integrated_gradients", "le_grad", "attcat"])
def test_adapters_are_explained_like_the_weights_they_are_merged_into(method):
    pytest.importorskip("peft")
    model, inputs = adapted(build("vit")), inputs_of("vit")
    merged = adapted(build("vit")).merge_and_unload().eval()
    assert not torch.allclose(logits_of(merged, inputs), logits_of(build("vit"), inputs))
    before = Snapshot(model, inputs)
    assert_close(explained(model, "vit", inputs, method), explained(merged, "vit", inputs, method), **EXACT)
    assert before.changes() == []


# Tools


def _preprocess(image: Image.Image) -> Tensor:
    small = image.convert("RGB").resize((32, 32))
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)[None].to(torch.float64) / 255


def _picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(256, size=(32, 32, 3), dtype=np.uint8))


def _guide(model, folder, **options):
    image, other = (_preprocess(_picture(seed)) for seed in (0, 1))
    return vitrail.guide(model, image, other, 1, method="gae", **options).scores


def _audit(model, folder):
    found = vitrail.audit(model, folder, class_names=list("abcde"), preprocess=_preprocess, method="complete_gradient")
    return torch.tensor([finding.apart for finding in found.findings], dtype=torch.float64)


def _rewrite(model, folder):
    found = vitrail.rewrite(model, _picture(0), 2, preprocess=_preprocess, steps=2, linf=0.1)
    return found.trace


def _transfer(model, folder):
    return vitrail.transfer(model, _preprocess(_picture(0)), 1, steps=1).scalar


def _record(model, folder):
    return vitrail.record(model, _preprocess(_picture(0)), 1).logits


def _examine(model, folder):
    report = examine(model, _preprocess(_picture(0)))
    assert report.passed
    return torch.tensor([row.error for row in report.rows])


def _compare(model, folder):
    return torch.stack(
        [x.scores for x in vitrail.compare(model, _preprocess(_picture(0)), ["gae", "attn_lrp", "auto"], 1)]
    )


TOOLS = {
    "guide": _guide,
    "guide_native": partial(_guide, size="native"),
    "detail": lambda model, folder: vitrail.detail(model, _preprocess(_picture(0)), 1, 2).scores,
    "transfer": _transfer,
    "rewrite": _rewrite,
    "audit": _audit,
    "record": _record,
    "examine": _examine,
    "compare": _compare,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A picture of each of two classes."""
    root = tmp_path_factory.mktemp("labelled")
    for seed, label in enumerate("ab"):
        (root / label).mkdir()
        _picture(seed).save(root / label / "x.png")
    return root


@pytest.fixture(scope="module")
def plain_tools(folder):
    """A function: what a tool finds of the plain model, once for all that is compared with it."""
    return cache(lambda tool: TOOLS[tool](_twin(same, "timm"), folder))


@pytest.mark.parametrize(
    "wrap", [lambda m: with_gradients(training(m)), compiled, parallel], ids=["training", "compiled", "parallel"]
)
@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_leaves_the_model_as_it_was_and_works_on_it_like_on_a_plain_one(tool, wrap, folder, plain_tools):
    model, problems = wrap(build("timm")), []
    before, own = Snapshot(model), {*model.modules()}

    def look(module):
        if module in own:
            problems.append(f"a {type(module).__name__} of the model itself ran")
        if type(module).__name__ == "Attention":
            problems.extend(before.changes(values=False))

    with every_call(look):
        found = TOOLS[tool](model, folder)
    assert problems + before.changes() == []
    assert_close(found, plain_tools(tool), **EXACT)


# Threads


class Together:
    """Functions that other threads call again and again while the block runs; the errors they raise."""

    def __init__(self, *functions: Callable[[], None]) -> None:
        self.errors: list[BaseException] = []
        self.counts = [0] * len(functions)
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._repeat, args=pair) for pair in enumerate(functions)]

    def _repeat(self, place: int, function: Callable[[], None]) -> None:
        try:
            while not self.stop.is_set():
                function()
                self.counts[place] += 1
        except BaseException as error:  # a thread's error would be lost otherwise
            self.errors.append(error)

    def __enter__(self) -> "Together":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def gradients_of(model: nn.Module, inputs: dict) -> list[Tensor]:
    """The gradients that one backward pass writes."""
    model.zero_grad(set_to_none=True)
    logits_in(model(**inputs)).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def check_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


THREADED = (
    "auto", "attn_lrp", "lrp", "transformer_attribution", "gae", "integrated_gradients", "le_grad", "tam", "tis",
    "abs_lrp", "tokentm", "dix",
)  # fmt: skip


@pytest.mark.parametrize("method", THREADED)
def test_while_one_thread_explains_others_infer_train_explain_and_compile(method):
    # In single precision, since some methods run a copy of the weights in double precision.
    inputs = inputs_of("vit", torch.float32)
    model = build("without_dropout").float().train()  # all threads draw from one generator: nothing may be drawn
    wanted = explained(build("without_dropout").float(), "vit", inputs, method)
    gradients, logits = gradients_of(model, inputs), logits_of(model, inputs)
    seen: list[int] = []

    def backend(graph, example):
        seen.append(len(example))
        return graph.forward

    def infer() -> None:
        with torch.no_grad():
            assert torch.equal(logits_in(model(**inputs)), logits)

    def explain() -> None:
        assert_close(explained(model, "vit", inputs, method), wanted, rtol=1e-5, atol=1e-6)

    def compile_another() -> None:
        torch._dynamo.reset_code(_sine.__code__)
        found = torch.compile(_sine, backend=backend)(torch.arange(3.0))
        assert torch.equal(found, torch.arange(3.0).sin() + 1)

    stance = surroundings()["stance"]
    others = (infer, lambda: check_equal(gradients_of(model, inputs), gradients), explain, compile_another)
    with Together(*others) as together:
        for _ in range(3):
            explain()
        while min(together.counts) < 2 and not together.errors:
            explain()
    assert together.errors == []
    assert surroundings()["stance"] == stance
    assert len(seen) >= 2
    check_equal(gradients_of(model, inputs), gradients)


def _sine(x: Tensor) -> Tensor:
    return x.sin() + 1


def test_threads_that_explain_models_which_share_weights_do_not_disturb_each_other():
    model, inputs = build("llama"), inputs_of("llama")
    holder = aliased(model)
    wanted = {name: explained(build("llama"), "llama", inputs, name) for name in ("attn_lrp", "gae", "auto")}

    def explain(which: nn.Module, name: str) -> None:
        assert_close(explained(which, "llama", inputs, name), wanted[name], **EXACT)

    before = Snapshot(holder, inputs)
    with Together(partial(explain, model, "attn_lrp"), partial(explain, holder, "gae")) as together:
        for _ in range(5):
            explain(holder, "auto")
    assert together.errors == []
    assert before.changes() == []


def test_two_models_explained_at_once_leave_compilation_on():
    """Two overlapping calls once left torch.compile off for good."""
    models, inputs = [build("vit"), build("bert")], [inputs_of("vit"), inputs_of("bert")]
    gate = threading.Barrier(2)
    stance = surroundings()["stance"]

    def first(logits: Tensor) -> Tensor:
        gate.wait(timeout=300)  # the second has begun
        return logits[:, 1]

    def second(logits: Tensor) -> Tensor:
        gate.wait(timeout=300)
        gate.wait(timeout=300)  # the first has ended
        return logits[:, 1]

    def explain_first() -> None:
        vitrail.explain(models[0], inputs[0], "gae", first)
        gate.wait(timeout=300)

    thread = threading.Thread(target=explain_first)
    thread.start()
    vitrail.explain(models[1], inputs[1], "gae", second)
    thread.join()
    assert surroundings()["stance"] == stance


def test_a_refusal_says_what_to_do_where_one_block_is_used_twice():
    with pytest.raises(SeamError, match=r"should attend once.*\[0, 2\]"):
        vitrail.explain(CASES["one_block"].model("vit"), inputs_of("vit"), "gae", 1)
    with pytest.raises(TargetError):
        vitrail.explain(build("vit"), inputs_of("vit"), "gae", 99)
