"""What is taken for an attention map is what multiplies the values, however the model writes it; all else is not."""

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import nn
from torch.testing import assert_close

import vitrail
from vitrail.capture.seams import attention_calls
from vitrail.errors import SeamError

B, H, Q, K, D, E = 2, 3, 5, 7, 4, 6


def random(*shape, seed=0):
    return (
        torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_() * 1.0
    )


def operands(keys=K, queries=Q):
    return random(B, H, queries, D, seed=1), random(B, H, keys, D, seed=2), random(B, H, keys, E, seed=3)


def captured(function, *args):
    plain = function(*args)
    calls = []
    with attention_calls(calls.append):
        out = function(*args)
    assert torch.equal(out, plain)  # bit for bit what the model computes
    return calls, out


ORDERS = {
    "bhqd bhkd bhqk bhkd bhqd": "the usual one",
    "bqhd bkhd bhqk bkhd bqhd": "tokens before heads",
    "bqhd bkhd bqhk bkhd bqhd": "a map with heads in the middle",
    "bqhd bkhd bqhk bkhd bhqd": "and an output the usual way",
    "qbhd kbhd bhqk kbhd qbhd": "tokens first, as in XLNet",
    "xyzw xyvw xyzv xyvw xyzw": "other letters",
    "BHqd BHkd BHqk BHkd BHqd": "capital letters",
}


@pytest.mark.parametrize("order", ORDERS, ids=ORDERS.get)
def test_an_einsum_of_any_letters_gives_up_its_operands(order):
    q_axes, k_axes, a_axes, v_axes, o_axes = order.split()
    q, k, v = operands()
    b, h, qq, kk, d = {"x": "xyzvw", "B": "BHqkd"}.get(order[0], "bhqkd")
    query = rearrange(q, f"{b} {h} {qq} {d} -> {' '.join(q_axes)}")
    key = rearrange(k, f"{b} {h} {kk} {d} -> {' '.join(k_axes)}")
    value = rearrange(v, f"{b} {h} {kk} {d} -> {' '.join(v_axes)}")

    def attend(query, key, value):
        probs = (torch.einsum(f"{q_axes},{k_axes}->{a_axes}", query, key) / 2).softmax(dim=-1)
        return torch.einsum(f"{a_axes}, {v_axes} -> {o_axes}", probs, value)

    (call,), out = captured(attend, query, key, value)
    expected = (q @ k.mT / 2).softmax(dim=-1)
    assert_close(call.weights, expected)
    assert_close(call.query, q)
    assert_close(call.key, k)
    assert_close(call.value, v)
    assert_close(call.output, expected @ v)
    assert (call.scale, call.plain) == (0.5, True)
    assert_close(call.softmax_input, q @ k.mT / 2)
    wanted = torch.autograd.grad((expected @ v).square().sum(), (q, expected), retain_graph=True)
    found = torch.autograd.grad(out.square().sum(), (call.query, call.weights))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other)


OTHER_EINSUMS = {
    "ellipsis": lambda q, k, v: torch.einsum(
        "...qk,...kd->...qd", torch.einsum("...qd,...kd->...qk", q, k).softmax(dim=-1), v
    ),
    "lists of axes": lambda q, k, v: torch.einsum(
        torch.einsum(q, [0, 1, 2, 4], k, [0, 1, 3, 4], [0, 1, 2, 3]).softmax(dim=-1), [0, 1, 2, 3], v, [0, 1, 3, 5],
        [0, 1, 2, 5],
    ),
    "operands in a list": lambda q, k, v: torch.einsum(
        "bhqk,bhkd->bhqd", [torch.einsum("bhqd,bhkd->bhqk", [q, k]).softmax(dim=-1), v]
    ),
    "values first": lambda q, k, v: torch.einsum(
        "bhkd,bhqk->bhqd", v, torch.einsum("bhkd,bhqd->bhqk", k, q).softmax(dim=-1)
    ),
    "einops": lambda q, k, v: einsum(
        einsum(q, k, "b h i d, b h j d -> b h i j").softmax(dim=-1), v, "b h i j, b h j d -> b h i d"
    ),
    "scores by einsum only": lambda q, k, v: torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(dim=-1) @ v,
    "values by einsum only": lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", (q @ k.mT).softmax(dim=-1), v),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_EINSUMS)
def test_einsum_in_its_other_spellings(name):
    q, k, v = operands()
    (call,), _ = captured(OTHER_EINSUMS[name], q, k, v)
    for found, expected in (
        (call.query, q),
        (call.key, k),
        (call.value, v),
        (call.weights, (q @ k.mT).softmax(dim=-1)),
    ):
        assert_close(found, expected)


def test_keys_and_values_that_heads_share_are_one_head():
    q, k, v = random(B, H, Q, D, seed=1), random(B, Q, D, seed=2), random(B, Q, E, seed=3)
    attend = lambda q, k, v: torch.einsum(  # noqa: E731
        "bhij,bjd->bhid", torch.einsum("bhid,bjd->bhij", q, k).softmax(dim=-1), v
    )
    (call,), out = captured(attend, q, k, v)
    assert_close(call.query, q)
    assert_close(call.key, k[:, None])
    assert_close(call.weights @ call.value, out)


def test_heads_and_queries_that_cannot_be_told_apart_are_refused():
    q, k, v = random(B, H, H, D), random(B, H, D), random(B, H, E)
    attend = lambda q, k, v: torch.einsum(  # noqa: E731
        "bhij,bjd->bhid", torch.einsum("bhid,bjd->bhij", q, k).softmax(dim=-1), v
    )
    with pytest.raises(SeamError, match="which are heads and which queries"):
        captured(attend, q, k, v)


def test_an_einsum_that_also_sums_over_heads_gives_up_its_map_only():
    q, k, v = operands()
    attend = lambda q, k, v: torch.einsum("bhqk,bhkd->bqd", (q @ k.mT).softmax(dim=-1), v)  # noqa: E731
    (call,), _ = captured(attend, q, k, v)
    assert_close(call.weights, (q @ k.mT).softmax(dim=-1))
    assert (call.value, call.output) == (None, None)
    assert call.query is q


def test_an_einsum_of_three_gives_up_its_map_only():
    q, k, v = operands()
    projection = random(H, E, 8)
    attend = lambda q, k, v: torch.einsum("bhqk,bhkd,hde->bqe", (q @ k.mT).softmax(dim=-1), v, projection)  # noqa: E731
    (call,), _ = captured(attend, q, k, v)
    assert_close(call.weights, (q @ k.mT).softmax(dim=-1))
    assert call.value is None


KEYWORDS = {
    "matmul": lambda q, k, v: torch.matmul(input=F.softmax(input=torch.matmul(input=q, other=k.mT), dim=-1), other=v),
    "one keyword": lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q, other=k.mT), dim=-1), other=v),
    "a tensor's": lambda q, k, v: q.matmul(other=k.mT).softmax(dim=-1).matmul(other=v),
    "dropout": lambda q, k, v: F.dropout(input=(q @ k.mT).softmax(-1), p=0.3, training=False) @ v,
    "reshape": lambda q, k, v: torch.reshape(input=(q @ k.mT).softmax(-1), shape=(B, H, Q, K)) @ v,
    "bmm": lambda q, k, v: torch.bmm(
        input=torch.bmm(input=q.flatten(0, 1), mat2=k.flatten(0, 1).mT).softmax(dim=-1), mat2=v.flatten(0, 1)
    ),
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_operands_by_keyword_are_heard(name):
    q, k, v = operands()
    (call,), _ = captured(KEYWORDS[name], q, k, v)
    assert_close(call.weights.reshape(B, H, Q, K), (q @ k.mT).softmax(dim=-1))
    assert_close(call.query.reshape(q.shape), q)
    assert_close(call.value.reshape(v.shape), v)


def test_a_biased_product_has_its_bias_in_the_scores_and_its_factor_in_the_scale():
    """As Bloom writes it."""
    q, k, v = (x.flatten(0, 1) for x in operands())
    bias = random(B * H, 1, K)
    attend = lambda q, k, v: bias.baddbmm(batch1=q, batch2=k.mT, beta=0.5, alpha=0.25).softmax(dim=-1).bmm(v)  # noqa: E731
    (call,), _ = captured(attend, q, k, v)
    assert call.query is q
    assert (call.scale, call.plain) == (0.25, True)
    assert_close(call.softmax_input, 0.25 * q @ k.mT + 0.5 * bias)
    assert_close(call.key, k)


SCALES = {
    "times": (lambda s: s * 0.5, 0.5, True),
    "times, the other way": (lambda s: 0.5 * s, 0.5, True),
    "divided, then masked": (lambda s: (s / 4).masked_fill(torch.ones(Q, K).triu(3).bool(), -1e9), 0.25, True),
    "mask added": (lambda s: s * 2 + torch.zeros(K, dtype=s.dtype), 2.0, True),
    "soft-capped": (lambda s: 3 * torch.tanh(s * 0.5 / 3), 1.0, False),
    "by head": (lambda s: s * torch.ones(H, 1, 1, dtype=s.dtype), 1.0, False),
    "the largest taken off": (lambda s: s - s.max(dim=-1, keepdim=True).values, 1.0, False),
    "in place": (lambda s: s.mul_(0.5).add_(1.0), 0.5, True),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_scale_is_known_only_where_scores_are_a_scaled_product(name):
    change, scale, plain = SCALES[name]
    q, k, v = operands()
    (call,), _ = captured(lambda q, k, v: change(q @ k.mT).softmax(dim=-1) @ v, q, k, v)
    assert call.query is q
    assert (call.scale, call.plain) == (scale, plain)


def test_values_on_the_left_of_the_transposed_map():
    """Channels before tokens: out = v A^T."""
    q, k, v = (x[:, 0] for x in operands())
    attend = lambda q, k, v: torch.bmm(v.mT, torch.bmm(q, k.mT).softmax(dim=-1).permute(0, 2, 1))  # noqa: E731
    (call,), out = captured(attend, q, k, v)
    assert_close(call.value, v)
    assert_close(call.weights @ call.value, out.mT)
    assert_close(call.output, out.mT)
    expected = torch.autograd.grad(out.square().sum(), q, retain_graph=True)
    through = torch.autograd.grad(out.square().sum(), call.weights, retain_graph=True)
    assert_close(torch.autograd.grad(call.weights, q, through), expected)


def test_a_sink_takes_part_in_the_softmax_and_not_in_the_map():
    q, k, v = operands()
    sink = random(B, H, Q, 1)

    def attend(q, k, v):
        scores = torch.cat([q @ k.mT / 2, sink], dim=-1)
        probs = (scores - scores.max(dim=-1, keepdim=True).values).softmax(dim=-1)
        return F.dropout(probs[..., :-1], 0.1, training=False) @ v

    (call,), out = captured(attend, q, k, v)
    assert call.query is q
    assert_close(call.weights @ call.value, out)
    assert float(call.weights.sum(dim=-1).max()) < 1
    assert call.softmax_input.shape == call.weights.shape


def test_rows_set_to_zero_after_the_softmax_are_zero_in_the_map():
    q, k, v = operands()
    seen = torch.ones(B, 1, Q, 1, dtype=torch.bool)
    seen[1, :, 3:] = False
    (call,), out = captured(lambda q, k, v: (q @ k.mT).softmax(dim=-1).masked_fill(~seen, 0.0) @ v, q, k, v)
    assert_close(call.weights @ call.value, out)
    assert float(call.weights[1, :, 3:].abs().max()) == 0


MIX = random(H, H, seed=8)


def _filled(probs):
    probs = probs.clone()
    probs[..., 0] = 0
    return probs


CHANGED = {
    "heads mixed by einsum": lambda a: torch.einsum("bhqk,hg->bgqk", a, MIX),
    "heads mixed by einsum, turned": lambda a: torch.einsum("gh,bhqk->bgqk", MIX, a),
    "heads mixed by a linear layer": lambda a: F.linear(a.permute(0, 2, 3, 1), MIX).permute(0, 3, 1, 2),
    "heads mixed by a product": lambda a: (MIX @ a.flatten(2)).view_as(a),
    "heads mixed by a convolution": lambda a: F.conv2d(a, MIX[:, :, None, None]),
    "gated": lambda a: a * torch.sigmoid(MIX[0])[None, :, None, None],
    "gated in place": lambda a: a.clone().mul_(0.5),
    "divided by its sum again": lambda a: (a + 0.1) / (a + 0.1).sum(dim=-1, keepdim=True),
    "some entries written over": _filled,
    "two maps blended": lambda a: 0.3 * a + 0.7 * a.flip(-1).softmax(dim=-1),
    "averaged over heads": lambda a: a.mean(dim=1, keepdim=True).expand_as(a),
    "sharpened": lambda a: a.pow(2),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("square", [True, False])
def test_a_map_changed_after_the_softmax_is_refused_by_name(name, square):
    q, k, v = operands(queries=K if square else Q)
    with pytest.raises(SeamError, match="is changed after its softmax, by"):
        captured(lambda q, k, v: CHANGED[name]((q @ k.mT).softmax(dim=-1)) @ v, q, k, v)
    with pytest.raises(SeamError, match="is changed after its softmax, by"):
        captured(lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", CHANGED[name]((q @ k.mT).softmax(dim=-1)), v), q, k, v)


NO_ATTENTION = {
    "a gate over experts": lambda x, w: F.linear(x, w).softmax(dim=-1) @ random(B, 3, 6),
    "a table": lambda x, w: F.linear(x, w).softmax(dim=-1) @ random(3, 6),
    "experts by einsum": lambda x, w: torch.einsum("bte,btef->btf", F.linear(x, w).softmax(dim=-1), random(B, Q, 3, 6)),
    "experts of all": lambda x, w: torch.einsum("bte,ebtf->btf", F.linear(x, w).softmax(dim=-1), random(3, B, Q, 6)),
    "one by one": lambda x, w: (F.linear(x, w).softmax(dim=-1)[..., None] * random(B, Q, 3, 6)).sum(dim=2),
    "slots": lambda x, w: torch.einsum("btd,sd->bts", x, w).softmax(dim=-1) @ random(B, 3, 6),
    "a product with weights": lambda x, w: (x @ w.mT).softmax(dim=-1) @ random(B, 3, 6),
    "best experts": lambda x, w: F.linear(x, w).softmax(dim=-1).topk(2, dim=-1).values @ random(B, 2, 6),
}


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_the_softmax_of_a_gate_is_no_attention(name):
    x, w = random(B, Q, 8), nn.Parameter(random(3, 8))
    calls, _ = captured(NO_ATTENTION[name], x, w)
    assert calls == []


def linear_attention(q, k, v):
    return q.softmax(dim=-1) @ (k.softmax(dim=-2).mT @ v)


def linear_attention_by_einsum(q, k, v):
    context = torch.einsum("bhnd,bhne->bhde", k.softmax(dim=-2), v)
    return torch.einsum("bhnd,bhde->bhne", q.softmax(dim=-1), context)


def agents(q, k, v):
    agent = q[:, :, :3]
    return (q @ agent.mT).softmax(dim=-1) @ ((agent @ k.mT).softmax(dim=-1) @ v)


@pytest.mark.parametrize("attend", [linear_attention, linear_attention_by_einsum, agents])
@pytest.mark.parametrize("tokens", [D, Q])
def test_a_softmax_times_a_product_is_refused_also_with_as_many_tokens_as_channels(attend, tokens):
    q, k, v = operands(keys=tokens, queries=tokens)
    with pytest.raises(SeamError, match="a product of two activations"):
        captured(attend, q, k, v)


def test_a_map_applied_over_its_queries_is_refused():
    q, k, v = operands(keys=Q)
    with pytest.raises(SeamError, match="over its queries, not over its keys"):
        captured(lambda q, k, v: (q @ k.mT).softmax(dim=-1).mT @ v, q, k, v)


def test_two_maps_made_before_either_is_applied_are_two_calls():
    q, k, v = operands(keys=Q)

    def both(q, k, v):
        near, far = (q @ k.mT).softmax(dim=-1), (k @ q.mT / 2).softmax(dim=-1)
        return near @ v + far @ v

    calls, _ = captured(both, q, k, v)
    assert [call.query is x for call, x in zip(calls, (q, k), strict=True)] == [True, True]


def test_a_map_used_twice_is_two_calls():
    q, k, v = operands(keys=Q)

    def twice(q, k, v):
        probs = (q @ k.mT).softmax(dim=-1)
        return probs @ v + probs @ (v + 1)

    calls, _ = captured(twice, q, k, v)
    assert len(calls) == 2


def test_nothing_is_held_after_the_tensors_are_gone():
    import gc
    import weakref

    q, k, v = operands()
    seen = []
    with attention_calls(lambda call: seen.append(weakref.ref(call.weights))) as follower:
        (q @ k.mT).softmax(dim=-1) @ v
        gc.collect()
        assert seen[0]() is None
        assert not follower.maps
        assert not follower.scores


def test_without_gradients_the_same_is_heard():
    q, k, v = operands()
    with torch.no_grad():
        (call,), _ = captured(lambda q, k, v: (q @ k.mT).softmax(dim=-1) @ v, q, k, v)
        assert call.query is q
        with pytest.raises(SeamError, match="a product of two activations"):
            captured(linear_attention, q, k, v)


def test_learned_queries_may_be_fewer_than_keys():
    """A pooling head: its queries are weights, its keys are not."""
    latents, k, v = nn.Parameter(random(1, 2, D).detach()), random(B, K, D), random(B, K, E)
    (call,), _ = captured(lambda q, k, v: (q @ k.mT).softmax(dim=-1) @ v, latents, k, v)
    assert call.weights.shape == (B, 2, K)


class Blocks(nn.Module):
    def __init__(self, attend):
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(60, 12)
        self.blocks = nn.ModuleList(Attending(attend) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Attending(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12) for _ in range(4))
        self.attend = attend

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


def channels(q, k, v):
    """Cross-covariance attention: the map is of channels."""
    return ((q.mT @ k).softmax(dim=-1) @ v.mT).mT


@pytest.mark.parametrize("method", ["gae", "rollout", "tam", "raw_attention"])
def test_a_map_of_channels_is_refused_where_there_are_more_or_fewer_tokens(method):
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    model = Blocks(channels).double().eval()
    with pytest.raises(SeamError, match=r"queries|tokens"):
        vitrail.explain(model, ids, method, 1, anatomy=vitrail.Anatomy(blocks="blocks", readout="cls"))


@pytest.mark.parametrize("name", ["cait_xxs24_224", "xcit_nano_12_p16_224"])
def test_talking_heads_and_channel_attention_of_timm_are_refused(name):
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, pretrained=False, img_size=64, depth=2).eval()
    blocks = vitrail.Anatomy(blocks="blocks", readout="mean")
    with pytest.raises(SeamError):
        vitrail.explain(model, torch.randn(1, 3, 64, 64), "gae", 1, anatomy=blocks)


def over_sum(powers, *, axis=-1, added=None):
    total = powers.sum(dim=axis, keepdim=True)
    return powers / (total if added is None else total + added)


def cut(powers):
    powers[..., HALF == 0] = 0.0
    return powers


HALF = torch.ones(Q, K, dtype=torch.float64).tril(2)
IN_PARTS = {
    "exp": (lambda s: over_sum(s.exp()), lambda s: s),
    "exp less the maximum": (lambda s: over_sum(torch.exp(s - s.amax(dim=-1, keepdim=True))), None),
    "exp in place": (lambda s: over_sum(s.exp_()), None),
    "a log-softmax": (lambda s: s.log_softmax(dim=-1).exp(), lambda s: s),
    "a sum without its axis": (lambda s: (lambda e: e / e.sum(dim=-1).unsqueeze(-1))(s.exp()), lambda s: s),
    "an indexed sum": (lambda s: (lambda e: e / e.sum(-1)[..., None])(s.exp()), lambda s: s),
    "a bounded sum": (lambda s: (lambda e: e / e.sum(-1, keepdim=True).clamp(min=1e-9))(s.exp()), lambda s: s),
    "masked after exp": (lambda s: over_sum(s.exp() * HALF), None),
    "cut after exp": (lambda s: over_sum(cut(s.exp())), None),
    "filled after exp": (lambda s: over_sum(s.exp().masked_fill(HALF == 0, 0.0)), None),
}


@pytest.mark.parametrize("form", IN_PARTS)
def test_powers_of_e_over_their_sum_are_a_softmax(form):
    q, k, v = operands()
    write, entered = IN_PARTS[form]
    (call,), out = captured(lambda q, k, v: write(q @ k.mT / 2) @ v, q, k, v)
    hidden = HALF == 0 if "after" in form else torch.zeros(Q, K, dtype=torch.bool)
    expected = (q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(dim=-1)
    assert_close(call.weights, expected)
    assert_close(torch.autograd.grad(out.square().sum(), call.weights)[0], 2 * (expected @ v) @ v.mT)
    assert call.query is not None
    assert_close(call.query, q)
    # Methods that read scores get them only where they are what the model computed.
    assert_close(call.softmax_input, None if entered is None else q @ k.mT / 2)


NO_SOFTMAX = {
    "a sum over queries": lambda s: over_sum(s.exp(), axis=-2),
    "something added to the sum": lambda s: over_sum(s.exp(), added=1e-6),
    "the sum of others": lambda s: s.exp() / (s / 2).exp().sum(dim=-1, keepdim=True),
    "something added in place": lambda s: (lambda e: e / e.sum(dim=-1, keepdim=True).add_(1e-6))(s.exp()),
    "no division": lambda s: s.exp(),
    "a large bound": lambda s: (lambda e: e / e.sum(-1, keepdim=True).clamp(min=1.0))(s.exp()),
}


@pytest.mark.parametrize("form", NO_SOFTMAX)
def test_powers_of_e_that_do_not_add_up_to_one_are_no_softmax(form):
    q, k, v = operands()
    assert captured(lambda q, k, v: NO_SOFTMAX[form](q @ k.mT / 2) @ v, q, k, v)[0] == []


KEYS_FIRST = {
    "turned back": lambda q, k, v: (k @ q.mT / 2).softmax(-2).mT @ v,
    "values on the left": lambda q, k, v: (v.mT @ (k @ q.mT / 2).softmax(dim=2)).mT,
    "einsum": lambda q, k, v: torch.einsum(
        "bhkq, bhke -> bhqe", torch.softmax(torch.einsum("bhkd,bhqd->bhkq", k, q) / 2, dim=-2), v
    ),
}


@pytest.mark.parametrize("attend", KEYS_FIRST.values(), ids=KEYS_FIRST)
def test_a_softmax_over_keys_that_stand_before_queries_gives_the_same_map(attend):
    q, k, v = operands()
    (call,), out = captured(attend, q, k, v)
    assert_close(call.weights, (q @ k.mT / 2).softmax(dim=-1))
    assert_close(call.weights @ call.value, out)
    (found,) = torch.autograd.grad(out.square().sum(), call.weights)
    assert_close(found, 2 * out @ v.mT)


def test_a_softmax_over_queries_is_no_attention_map():
    q, k, v = operands(keys=Q)
    with pytest.raises(SeamError, match="multiplied over its queries, not over its keys"):
        captured(lambda: (q @ k.mT).softmax(-2) @ v)
