"""What methods give on models of `random_models`, in plain loops over single texts, heads, tokens and layers.

Nothing here calls the library, the model's `forward` or its attention. A text is run alone and without padding, so a
reference knows nothing of masks, batches or orders of axes. Every layer that mixes tokens is in it, however the model
writes it. Where a layer has no map `[h, q, k]`, methods that read maps have no reference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from random_models import BETWEEN, CONTENT, EXITS, PAIR, UNMAPPED, WIDTH, Block, RandomModel, shuffled
from torch import Tensor, nn

TARGET = 1
STEPS = 50


@dataclass
class Mixing:
    """A layer's map [h, n, n], None where it has none, and what TokenTM reads of the block."""

    maps: Tensor | None
    entering: Tensor
    values: Tensor
    output: Tensor
    scale: Tensor
    feed_entering: Tensor | None = None
    feed_added: Tensor | None = None


@dataclass
class Move:
    """Tokens in another order: row i was row `places[i]`."""

    places: list[int]


@dataclass
class Run:
    """A text that was run alone.

    Args:
        words: the vectors of the words, where a reference takes gradients.
        entering: what enters the first block.
        events: all that mixes or moves tokens before the head reads them, in order.
        read: the states that the head reads.
        pooling: the map of a pooling query, [1, n].
    """

    words: Tensor
    entering: Tensor
    events: list[Mixing | Move] = field(default_factory=list)
    read: Tensor | None = None
    pooling: Tensor | None = None
    logits: Tensor | None = None

    @property
    def scalar(self) -> Tensor:
        assert self.logits is not None
        return self.logits[TARGET]


# The forward pass, by the chain rule or by AttnLRP's rules


def halved(x: Tensor) -> Tensor:
    """x itself with half of its gradient."""
    return (x + x.detach()) / 2


@dataclass(frozen=True)
class Plain:
    """The chain rule."""

    def norm(self, layer: nn.LayerNorm, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        deviation = (centred.square().mean(dim=-1, keepdim=True) + layer.eps).sqrt()
        return centred / self.constant(deviation) * layer.weight + layer.bias

    def constant(self, x: Tensor) -> Tensor:
        return x

    def apply(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return function(x)

    def factor(self, x: Tensor) -> Tensor:
        return x

    def gate(self, x: Tensor) -> Tensor:
        return x


class Relevance(Plain):
    """AttnLRP: f(x) / x for a function of single numbers, half for each factor of a product.

    Deviations of norms are constants, and so is one number for each token that a state is multiplied with.
    """

    def constant(self, x: Tensor) -> Tensor:
        return x.detach()

    def apply(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return x * (function(x) / x).detach()

    def factor(self, x: Tensor) -> Tensor:
        return halved(x)

    def gate(self, x: Tensor) -> Tensor:
        return x.detach()


PLAIN, RELEVANCE = Plain(), Relevance()


def projections(block: Block) -> tuple[Tensor, Tensor, nn.Linear]:
    """Weights and biases of queries, keys and values together, and the output projection."""
    if isinstance(getattr(block.attend, "inner", None), nn.MultiheadAttention):
        inner = block.attend.inner
        return inner.in_proj_weight, inner.in_proj_bias, inner.out_proj
    return block.attend.mix.weight, block.attend.mix.bias, block.attend.out


def seen_by(query: int, keys: int, *, causal: bool, windows: bool) -> list[int]:
    """The keys that a query may see."""
    found = range(query + 1) if causal else range(keys)
    return [k for k in found if not windows or k // PAIR == query // PAIR]


def row_of(form: str, q: Tensor, k: Tensor, rules: Plain) -> Tensor:
    """What one query gives to the keys it sees."""
    if form == "linear":
        weights = (F.elu(k) + 1) @ (F.elu(q) + 1)
        return weights / weights.sum()
    scores = rules.factor(k) @ rules.factor(q) / len(q) ** 0.5
    if form == "sigmoid":
        return rules.apply(torch.sigmoid, scores) / len(k)
    return rules.apply(F.relu, scores) / len(k) if form == "relu" else scores.softmax(dim=0)


def mixed_linearly(form: str, v: Tensor) -> Tensor:
    """The values [n, d] mixed without queries."""
    n = len(v)
    if form == "running_mean":
        return torch.stack([v[: i + 1].mean(dim=0) for i in range(n)])
    if form == "fourier":
        angles = torch.arange(n, dtype=v.dtype)[:, None] * torch.arange(n, dtype=v.dtype) * 2 * torch.pi / n
        return angles.cos() @ v / n**0.5
    rows = [v[i] * 0.3 + (v[i - 1] * 0.5 if i else 0) + (v[i + 1] * 0.2 if i + 1 < n else 0) for i in range(n)]
    return torch.stack(rows)


def attention(model: RandomModel, block: Block, form: str, x: Tensor, rules: Plain) -> tuple[Tensor, Mixing]:
    """What attention adds to the states [n, d], before norms and factors; and its maps."""
    recipe, n, size = model.recipe, len(x), WIDTH // model.recipe.heads
    weight, bias, output = projections(block)
    q, k, v = (x @ weight.T + bias).split(WIDTH, dim=1)
    unmapped = form in UNMAPPED and form != "linear"
    seen = [seen_by(i, n, causal=recipe.causal, windows=recipe.order == "windows") for i in range(n)]
    maps, values = [], []
    for h in range(recipe.heads):
        channels = slice(h * size, (h + 1) * size)
        of_keys = slice(0, size) if form == "shared_keys" else channels
        values.append(v[:, of_keys])
        rows = []
        for i in range(0 if unmapped else n):
            row = torch.zeros(n, dtype=x.dtype)
            some = torch.tensor(seen[i])
            rows.append(row.index_add(0, some, row_of(form, q[i, channels], k[some][:, of_keys], rules)))
        maps += [torch.stack(rows)] if rows else []
    # The maps as one tensor, so that a gradient arrives at it.
    found = torch.stack(maps) if maps else None
    if found is None:
        heads = [_in_windows(model, form, value) for value in values]
    else:
        heads = [rules.factor(one) @ rules.factor(value) for one, value in zip(found, values, strict=True)]
    out = torch.cat(heads, dim=1) @ output.weight.T + output.bias
    made = Mixing(None if form in UNMAPPED else found, x, torch.stack(values), output.weight, torch.ones(WIDTH))
    return out, made


def _in_windows(model: RandomModel, form: str, v: Tensor) -> Tensor:
    if model.recipe.order != "windows":
        return mixed_linearly(form, v)
    return torch.cat([mixed_linearly(form, some) for some in v.split(PAIR)])


def through(model: RandomModel, block: Block, form: str, x: Tensor, rules: Plain) -> tuple[Tensor, Mixing]:
    """One block on the states [n, d] of a text."""
    recipe = model.recipe

    def before(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return rules.norm(norm, x) if recipe.norm in ("pre", "sandwich") else x

    def after(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return rules.norm(norm, x) if recipe.norm == "sandwich" else x

    def fed(x: Tensor) -> Tensor:
        given = before(block.second, x) @ block.up.weight.T + block.up.bias
        return scale[1] * after(block.fourth, rules.apply(F.gelu, given) @ block.down.weight.T + block.down.bias)

    scale = block.scale if recipe.block == "layer_scale" else torch.ones_like(block.scale)
    out, mixing = attention(model, block, form, before(block.first, x), rules)
    mixing.entering, mixing.scale = x, scale[0]
    out = scale[0] * after(block.third, out)
    if form == "class_row":
        out = torch.cat([out[:1], torch.zeros_like(out[1:])])
    if block.detached:
        out = out.detach()
    if recipe.block == "parallel":
        return x + out + fed(x), mixing
    x = x + out
    x = rules.norm(block.first, x) if recipe.norm == "post" else x
    if recipe.block == "attention_only":
        return x, mixing
    mixing.feed_entering, mixing.feed_added = x, fed(x)
    x = x + mixing.feed_added
    return (rules.norm(block.second, x) if recipe.norm == "post" else x), mixing


def order_of(order: str, n: int, *, odd: bool) -> list[int] | None:
    """Which row each row comes from, by the name of an order; None where nothing moves."""
    if order in CONTENT and not odd:
        return None
    if order == "roll":
        return [n - 1, *range(n - 1)]
    if order == "permutation_matrix":
        return shuffled(n).tolist()
    return list(range(n))[::-1] if order not in ("plain", "windows", "tokens_first", "flat") else None


def run(
    model: RandomModel, words: Sequence[int], rules: Plain = PLAIN, change: Callable[[Tensor], Tensor] | None = None,
    *, level: str = "embedding_output",
) -> Run:  # fmt: skip
    """Run one text.

    Args:
        change: what becomes of the vectors at the level.
    """
    recipe, n, odd = model.recipe, len(words), words[0] % 2 == 1
    change = change or (lambda x: x)
    moved = order_of(recipe.order, n, odd=odd)
    table = model.table(torch.tensor(words)).detach()
    table = change(table) if level == "inputs_embeds" else table
    early = recipe.order in ("flip_ids", "if_flip_ids")
    x = table[moved] if early and moved else table
    x = x + model.places[:n]
    x = torch.cat([model.start[0], x]) if recipe.readout == "class_token" else x
    x = change(x.detach()) if level == "embedding_output" else x
    if not x.requires_grad:
        x = x.detach().requires_grad_()
    made = Run(table if level == "inputs_embeds" else x, x)
    if moved and early:
        made.events.append(Move([0, *(i + 1 for i in moved)] if recipe.readout == "class_token" else moved))
    if moved and recipe.order in ("flip_states", "if_flip_states"):
        x = x[moved]
        made.events.append(Move(moved))
    made.read, between = _blocks(model, made, x, rules, moved=moved if recipe.order in BETWEEN else None, odd=odd)
    made.logits = read(model, made, words, rules, between)
    return made


def _blocks(
    model: RandomModel, made: Run, x: Tensor, rules: Plain, *, moved: list[int] | None, odd: bool
) -> tuple[Tensor, Tensor]:
    """The states after the last block that is read, and those after the last but one."""
    recipe, before_last = model.recipe, x
    depth = recipe.layers - 1 if recipe.readout in EXITS and odd else recipe.layers
    for i in range(depth):
        if i == recipe.layers - 1:
            before_last = x
            if moved:
                x = x[moved]
                made.events.append(Move(moved))
        x, mixing = through(model, model.blocks[i], recipe.forms[i], x, rules)
        made.events.append(mixing)
    x = x * 1.0  # a place of its own, where the gradient of the head alone arrives
    return x, before_last


def read(model: RandomModel, made: Run, words: Sequence[int], rules: Plain, before_last: Tensor) -> Tensor:
    """The logits of a text."""
    x, kind, n = made.read, model.recipe.readout, len(words)
    assert x is not None
    head = lambda row: row @ model.head.weight.T + model.head.bias  # noqa: E731
    if kind == "two_heads":
        return (head(x[0]) + x[-1] @ model.other.weight.T + model.other.bias) / 2
    if kind == "query":
        size = WIDTH
        weight, bias = model.pool.weight, model.pool.bias
        key, value = (x @ weight.T + bias).split(size, dim=1)
        made.pooling = torch.stack([rules.factor(k) @ model.query[0, 0] for k in key])[None] / size**0.5
        made.pooling = made.pooling.softmax(dim=1)
        return head((rules.factor(made.pooling) @ rules.factor(value))[0])
    if kind == "gated":
        weights = (x @ model.gate.weight.T + model.gate.bias).softmax(dim=0)
        return head((rules.gate(weights) * x).sum(dim=0))
    if kind == "max":
        return head(x.amax(dim=0))
    if kind == "mean":
        return head(sum(x[i] for i in range(n)) / n)
    if kind == "shortcut":
        return head(x[0] + 0.3 * (words[0] % 2) * before_last[0])
    marker = max(range(n), key=lambda i: words[i])
    return head(x[{"last": n - 1, "marker_index": marker, "marker_one_hot": marker}.get(kind, 0)])


# Methods


def of_words(model: RandomModel, scores: Tensor) -> Tensor:
    """The scores without that of a class token."""
    return scores[1:] if model.recipe.readout == "class_token" else scores


def gradients(made: Run, scalar: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(scalar, tensors, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=True)]


def carry(made: Run, relevance: Tensor, step: Callable[[Tensor, Mixing], Tensor]) -> Tensor:
    """The relevance of the last states carried to the first, through every layer and every move."""
    for event in reversed(made.events):
        if isinstance(event, Mixing):
            relevance = step(relevance, event)
            continue
        before = torch.zeros_like(relevance)
        for row, place in enumerate(event.places):
            before[place] += relevance[row]
        relevance = before
    return relevance


def start(made: Run) -> Tensor:
    """Equal weights of the rows at which the gradient of the head arrives."""
    assert made.read is not None
    (gradient,) = gradients(made, made.scalar, [made.read])
    rows = [float((row != 0).any()) for row in gradient]
    return torch.tensor(rows, dtype=torch.float64) / sum(rows)


def weighed(maps: Tensor, gradient: Tensor) -> Tensor:
    """The mean over heads of the positive part of gradient times map."""
    total = torch.zeros_like(maps[0])
    for one, of_one in zip(maps, gradient, strict=True):
        total = total + torch.where(one * of_one > 0, one * of_one, torch.zeros_like(one))
    return total / len(maps)


def gae(model: RandomModel, words: Sequence[int]) -> Tensor | None:
    """Chefer et al., Eqs. 5 and 6."""
    made = run(model, words)
    mixings = [event for event in made.events if isinstance(event, Mixing)]
    if any(one.maps is None for one in mixings):
        return None
    found = gradients(made, made.scalar, [one.maps for one in mixings])
    of_maps = {id(one): gradient for one, gradient in zip(mixings, found, strict=True)}
    relevance = start(made)
    if made.pooling is not None:
        (gradient,) = gradients(made, made.scalar, [made.pooling])
        relevance = weighed(made.pooling[None], gradient[None])[0]
    step = lambda rows, one: rows + rows @ weighed(one.maps, of_maps[id(one)])  # noqa: E731
    return of_words(model, carry(made, relevance, step).detach())


def rollout(model: RandomModel, words: Sequence[int]) -> Tensor | None:
    """Abnar and Zuidema: the product of (A + I) / 2."""
    made = run(model, words)
    if any(isinstance(event, Mixing) and event.maps is None for event in made.events):
        return None
    relevance = start(made) if made.pooling is None else made.pooling[0]
    step = lambda rows, one: (rows + rows @ one.maps.mean(dim=0)) / 2  # noqa: E731
    return of_words(model, carry(made, relevance, step).detach())


def token_weights(before: Tensor, after: Tensor) -> Tensor:
    """TokenTM, Eqs. 9 to 12: the ratio of lengths times the softmax of the cosines."""
    cosines, ratios = [], []
    for one, other in zip(before, after, strict=True):
        cosines.append((one @ other) / (one.norm() * other.norm()))
        ratios.append(other.norm() / one.norm())
    return torch.stack(ratios) * torch.stack(cosines).softmax(dim=0)


def tokentm(model: RandomModel, words: Sequence[int]) -> Tensor | None:
    """Wu et al., Eqs. 13 to 19, of the probability of the class."""
    recipe = model.recipe
    simple = recipe.norm == "pre" and recipe.block in ("serial", "layer_scale", "in_place")
    made = run(model, words)
    mixings = [event for event in made.events if isinstance(event, Mixing)]
    if not simple or made.pooling is not None or any(one.maps is None for one in mixings):
        return None
    if set(recipe.forms) & {"sigmoid", "relu", "class_row"}:
        return None
    assert made.logits is not None
    found = gradients(made, made.logits.softmax(dim=0)[TARGET], [one.maps for one in mixings])
    of_maps = {id(one): gradient for one, gradient in zip(mixings, found, strict=True)}

    def step(rows: Tensor, one: Mixing) -> Tensor:
        assert one.maps is not None
        assert one.feed_entering is not None
        assert one.feed_added is not None
        rows = rows * (1 + token_weights(one.feed_entering, one.feed_added))
        total, size = torch.zeros_like(rows), WIDTH // recipe.heads
        for h in range(recipe.heads):
            given = one.scale * (one.values[h] @ one.output[:, h * size : (h + 1) * size].T)
            positive = (one.maps[h] * of_maps[id(one)][h]).clamp(min=0)
            total = total + (rows @ positive) * token_weights(one.entering, given)
        return rows + total / recipe.heads

    return of_words(model, (carry(made, start(made), step) * made.entering.norm(dim=1)).detach())


def times_gradient(made: Run) -> Tensor:
    (gradient,) = gradients(made, made.scalar, [made.words])
    return (made.words * gradient).sum(dim=1).detach()


def attn_lrp(model: RandomModel, words: Sequence[int], *, level: str = "embedding_output") -> Tensor | None:
    """Achtibat et al.: gradient times input where products, functions and norms have rules of their own."""
    if "linear" in model.recipe.forms:
        return None  # a quotient of products: which rule is meant is not said
    leaf = lambda x: x.detach().requires_grad_()  # noqa: E731
    made = run(model, words, RELEVANCE, leaf, level=level)
    return _at_level(model, times_gradient(made), level)


def _at_level(model: RandomModel, scores: Tensor, level: str) -> Tensor:
    return of_words(model, scores) if level == "embedding_output" else scores


def input_x_gradient(model: RandomModel, words: Sequence[int], *, level: str = "embedding_output") -> Tensor:
    made = run(model, words, PLAIN, lambda x: x.detach().requires_grad_(), level=level)
    return _at_level(model, times_gradient(made), level)


def integrated_gradients(
    model: RandomModel, words: Sequence[int], *, level: str = "embedding_output", steps: int = STEPS, power: int = 1
) -> Tensor:
    """Sundararajan et al., Eq. 3 at powers of the middles of equal parts, each with the weight of its part."""
    total = torch.zeros(())
    for step in range(steps):
        middle = (step + 0.5) / steps
        made = run(model, words, PLAIN, partial(_scaled, middle**power), level=level)
        (gradient,) = gradients(made, made.scalar, [made.words])
        total = total + gradient * power * middle ** (power - 1) / steps
    whole = run(model, words, level=level).words
    return _at_level(model, (whole * total).sum(dim=1).detach(), level)


def _scaled(share: float, x: Tensor) -> Tensor:
    return (share * x.detach()).requires_grad_()


def fall_to_zero(model: RandomModel, words: Sequence[int], *, level: str = "embedding_output") -> float:
    """What the scores of integrated gradients should add up to."""
    zero = run(model, words, PLAIN, torch.zeros_like, level=level)
    return float((run(model, words).scalar - zero.scalar).detach())


BLANK, COPIES = 0, 3


def consensus(model: RandomModel, words: Sequence[int], *, ends: Sequence[int] = (0, -1)) -> Tensor | None:
    """The mean of AttnLRP over three copies, each without another third of the words, by the largest score.

    Args:
        ends: the words that are never blanked.
    """
    may_go = [i for i in range(len(words)) if i not in ends and i - len(words) not in ends]
    totals, counts = [0.0] * len(words), [0] * len(words)
    for copy in range(COPIES):
        gone = {i for number, i in enumerate(may_go) if number % COPIES == copy}
        kept = [i for i in range(len(words)) if i not in gone]
        found = _blanked(model, words, kept)
        if found is None:
            return None
        for place, score in zip(kept, found, strict=True):
            totals[place], counts[place] = totals[place] + float(score), counts[place] + 1
    mean = torch.tensor([total / count for total, count in zip(totals, counts, strict=True)], dtype=torch.float64)
    scaled = mean / mean.abs().max()
    reached = rollout(model, words) if model.recipe.causal else None
    if reached is not None:  # what stands behind all that is read cannot reach the answer, but that of a copy
        scaled[reached == 0] = 0
    return scaled


def _blanked(model: RandomModel, words: Sequence[int], kept: Sequence[int]) -> Tensor | None:
    """AttnLRP's scores of the words that are kept; a model that takes blanks for padding does not see the others."""
    if model.recipe.mask == "own":
        return attn_lrp(model, [words[i] for i in kept])
    found = attn_lrp(model, [word if i in kept else BLANK for i, word in enumerate(words)])
    return None if found is None else found[list(kept)]


def leave_one_out(model: RandomModel, words: Sequence[int], *, ends: Sequence[int] = ()) -> Tensor:
    """The fall of the target when one word is cut out.

    Args:
        ends: the words that are never cut out.
    """
    whole = float(run(model, words).scalar.detach())
    scores = [0.0] * len(words)
    for i in range(len(words)):
        if i not in ends and i - len(words) not in ends:
            without = [*words[:i], *words[i + 1 :]]
            scores[i] = whole - float(run(model, without).scalar.detach())
    return torch.tensor(scores, dtype=torch.float64)


REFERENCES: dict[str, Callable[..., Tensor | None]] = {
    one.__name__: one
    for one in (gae, rollout, tokentm, attn_lrp, consensus, integrated_gradients, input_x_gradient, leave_one_out)
}
AT_A_LEVEL = ("attn_lrp", "integrated_gradients", "input_x_gradient")
"""Methods that read the vectors of words, or what enters the first block."""
REMOVING = ("consensus", "leave_one_out")
"""Methods that run texts without some of their words."""
