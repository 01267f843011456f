"""Attention written by hand: scores, a softmax over the last axis, a product with the values.

The follower knows of every tensor what it has to do with attention. Scores are what comes out of a product and all that
is made of it; a softmax over the last axis makes a map of them, and so does one over the axis before it (keys before
queries), with these axes exchanged; the map is an attention map if it is multiplied with
values as the softmax left it. A map that something has changed before it is multiplied is refused by name, because what
the softmax gave is then not what the values are weighted with.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import mul, truediv
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import resolve_name
from torch.utils.weak import WeakIdKeyDictionary

from vitrail.capture.seams import einsum
from vitrail.capture.seams.call import AttentionCall, tensors_in
from vitrail.capture.seams.followed import Applied, AttentionMap, Powers, Product, Reading, Scores, same_total
from vitrail.errors import SeamError

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax}
EXPONENTIALS = {torch.exp, Tensor.exp, torch.exp_, Tensor.exp_}
SUMS = {torch.sum, Tensor.sum}
SAME_ENTRIES = {
    F.dropout, torch.dropout, Tensor.to, Tensor.type_as, Tensor.type, Tensor.float, Tensor.half, Tensor.bfloat16,
    Tensor.double, Tensor.view, Tensor.reshape, torch.reshape, Tensor.contiguous, Tensor.clone,
    torch.clone, Tensor.flatten, torch.flatten, Tensor.unflatten, torch.nan_to_num, Tensor.nan_to_num,
}  # fmt: skip
SCALINGS: dict[Callable[..., Any], Callable[[float, float], float]] = {
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__), mul),
    **dict.fromkeys((torch.div, Tensor.div, Tensor.__truediv__, Tensor.div_, Tensor.__itruediv__), truediv),
}
QUOTIENTS = {func for func, scaled in SCALINGS.items() if scaled is truediv}
SHIFTS = {
    torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__, torch.sub, Tensor.sub,
    Tensor.__sub__, Tensor.sub_, Tensor.__isub__, torch.masked_fill, Tensor.masked_fill, Tensor.masked_fill_,
    torch.where, Tensor.where,
}  # fmt: skip
"""What adds a bias or a mask to scores."""
DIFFERENCES = {torch.sub, Tensor.sub, Tensor.__sub__, Tensor.sub_, Tensor.__isub__}
JOINS = {torch.cat, torch.concat, torch.concatenate}
ELEMENTWISE = {
    torch.tanh, Tensor.tanh, Tensor.tanh_, F.tanh, torch.clamp, Tensor.clamp, Tensor.clamp_, Tensor.clamp_min,
    torch.clamp_min, torch.clip, Tensor.clip, torch.maximum, torch.minimum, Tensor.maximum, Tensor.minimum,
}  # fmt: skip
"""What else leaves every score at its place."""
FILLS = {torch.masked_fill, Tensor.masked_fill, Tensor.masked_fill_}
PROJECTIONS = {
    F.linear, torch.addmm, Tensor.addmm, F.conv1d, torch.conv1d, F.conv2d, torch.conv2d, F.layer_norm,
    torch.layer_norm, F.rms_norm, F.embedding, torch.embedding,
}  # fmt: skip
"""What comes out of these is a new representation, and has no scores in it."""
TRANSPOSED = Tensor.mT.__get__  # pyright: ignore[reportAttributeAccessIssue]
SWAPS = {torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes, torch.swapdims, Tensor.swapdims}
PERMUTATIONS = {torch.permute, Tensor.permute}
PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
BIASED_PRODUCTS = {torch.baddbmm, Tensor.baddbmm, Tensor.baddbmm_}
MULTIPLYING = PRODUCTS | BIASED_PRODUCTS | {torch.einsum}
"""Where attention written by hand begins and ends; what lies between is followed while there is something to follow."""
MOST_PRODUCTS = 16


@dataclass(eq=False)
class Follower:
    """Follows scores through a softmax to the product that makes it an attention call.

    Args:
        in_parts: whether powers of e over their sum are a softmax. Rules for these functions are not that of a softmax.
    """

    emit: Callable[[AttentionCall], None]
    in_parts: bool = True
    maps: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    scores: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    powers: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    totals: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    logs: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    follows: bool = False  # whether there is anything to follow, so that all functions matter
    waiting: list[torch.Size] = field(default_factory=list)  # of each map of scores that no product has applied

    def same(self, old: Tensor, new: Tensor) -> None:
        """Take one tensor for another that has its entries."""
        for known in (self.maps, self.scores):
            if old in known:
                known[new] = known[old]

    def keys_first(self, args: tuple, kwargs: dict) -> bool:
        """Return True if a softmax of a product of activations is over the last axis but one: the keys stand first."""
        given, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
        known = self.scores.get(given) if given.ndim in (3, 4, 5) and dim in (-2, given.ndim - 2) else None
        return known is not None and any(product.activations for product in known.products)

    def softmaxed(self, out: Tensor, args: tuple) -> None:
        """Take note of a softmax over the last axis."""
        self.maps[out] = AttentionMap(args[0], self.scores.get(args[0]), out.shape, tuple(range(out.ndim)))
        if args[0] in self.scores:
            self.waiting.append(out.shape)
        self.follows = True

    def ends_softmax(self, func: Callable[..., Any], args: tuple) -> bool:
        """Return True if a function ends a softmax in parts: powers of e over their sum, or e to a log-softmax."""
        if func in EXPONENTIALS:
            return args[0] in self.logs
        if func not in QUOTIENTS or len(args) < 2 or not all(isinstance(x, Tensor) for x in args[:2]):
            return False
        each = args[1].shape == (*args[0].shape[:-1], 1)  # one sum for each query
        return each and args[0] in self.powers and self.totals.get(args[1]) is self.powers[args[0]]

    def parts_of(self, x: Tensor) -> Powers:
        """Return the parts of a softmax in parts, by the argument of the function that ends it."""
        return self.logs[x] if x in self.logs else self.powers[x]

    def softmaxed_in_parts(self, out: Tensor, powers: Tensor) -> None:
        """Take note of the end of a softmax in parts; scores less their maximum are not the scores themselves."""
        made = self.parts_of(powers)
        given = made.exponents if made.scores.plain else None
        self.maps[out] = AttentionMap(given, made.scores, out.shape, tuple(range(out.ndim)), in_parts=True)
        self.follows = True

    def _note_parts(self, func: Callable[..., Any], out: Tensor, args: tuple, kwargs: dict) -> None:
        """Take note of a part of a softmax: powers of e of scores, their sum over keys, a log-softmax."""
        given = args[0] if args and isinstance(args[0], Tensor) else None
        if given is None or not self.in_parts:
            return
        self._note_totals(func, out, args, kwargs)
        if out.ndim not in (3, 4, 5):
            return
        if func in EXPONENTIALS and given in self.scores:
            self.powers[out] = Powers(None if out is given else given, self.scores[given])
        elif func in LOG_SOFTMAX and given in self.scores and over_keys(out, args, kwargs):
            self.logs[out] = Powers(given, self.scores[given])
        elif given in self.powers and out.shape == given.shape and _hides(func, args):
            self.powers[out] = Powers(None, replace(self.powers[given].scores, plain=False))
        elif out is given:  # written to in place
            self.powers.pop(out, None)
            self.totals.pop(out, None)

    def _note_totals(self, func: Callable[..., Any], out: Tensor, args: tuple, kwargs: dict) -> None:
        """Take note of the sum of powers of e over keys, with or without the axis of the keys."""
        given = args[0]
        if given in self.totals and out is not given and same_total(func, out, args, kwargs):
            self.totals[out] = self.totals[given]
        elif func in SUMS and given in self.powers and over_keys(given, args, kwargs):
            self.totals[out] = self.powers[given]

    def read(self, func: Callable[..., Any], args: tuple) -> Reading:
        """Return the reading of a product: whether it applies a map to values, and what scores it may make."""
        if func is not torch.einsum:
            return self._read_matmul(args, added=func in BIASED_PRODUCTS)
        args = self._straightened(args)
        found = einsum.read(args)
        return Reading(args, Product(tuple(tensors_in(args)))) if found is None else self._read_einsum(args, found)

    def _straightened(self, args: tuple) -> tuple:
        """The arguments of an einsum, with maps whose last two axes were exchanged as their softmax left them."""
        if not isinstance(args[0], str):
            return args
        terms, arrow, result = args[0].replace(" ", "").partition("->")
        names, given = terms.split(","), list(args[1:])
        for place, x in enumerate(given[: len(names)]):
            known = self.maps.get(x) if isinstance(x, Tensor) else None
            if known is not None and known.straight is not None and known.order == _swapped(x.ndim):
                names[place] = f"{names[place][:-2]}{names[place][:-3:-1]}"
                # Not `known.straight` itself: a rule may have put another tensor in the place of x.
                given[place] = x.transpose(-2, -1)
                self.maps[given[place]] = self.maps[known.straight]
        return f"{','.join(names)}{arrow}{result}", *given

    def multiplied(self, reading: Reading, func: Callable[..., Any], out: Any, kwargs: dict) -> None:  # noqa: ANN401
        """Take note of a product that has been computed."""
        if not isinstance(out, Tensor):
            return
        product = replace(reading.product, shape=out.shape)
        if any(self._is_product(x) for x in product.operands):  # of scores, not of queries and keys
            product = replace(product, query=None)
        scale = float(kwargs.get("alpha", 1)) if func in BIASED_PRODUCTS else 1.0
        self.scores[out] = Scores((product,), product if product.query is not None else None, scale)
        self.follows = True
        if reading.applied is not None:
            self._emit(reading.applied, out)
            return
        for x in reading.product.operands:
            if x in self.maps and _has_both(out, self.maps[x]):
                self.maps[out] = _after_change(func, self.maps[x])

    def changed(self, func: Callable[..., Any], out: Any, args: tuple, kwargs: dict) -> None:  # noqa: ANN401
        """Take note of any other function: what it makes of scores and maps."""
        self.follows = bool(self.maps) or bool(self.scores)
        out = args[0] if func is Tensor.__setitem__ else out
        if isinstance(out, Tensor):
            self._note_parts(func, out, args, kwargs)
        given = list(tensors_in((args, kwargs))) if self.follows else []
        mapped = [x for x in given if x in self.maps]
        scored = [(x, self.scores[x]) for x in given if x in self.scores] if func not in PROJECTIONS else []
        for made in tensors_in(out) if mapped or scored else ():
            if not made.is_floating_point():
                continue
            if mapped and _has_both(made, self.maps[mapped[0]]):
                self.maps[made] = _map_after(func, self.maps[mapped[0]], mapped[0], made, args)
            if scored:
                self.scores[made] = _scores_after(func, scored, made, args, kwargs)

    def _read_matmul(self, args: tuple, *, added: bool) -> Reading:
        first = 1 if added else 0
        left, right = args[first : first + 2]
        if not left.ndim == right.ndim in (3, 4, 5):
            return Reading(args, Product((left, right), keyed=left.ndim < right.ndim, activations=False))
        plain = tuple(range(left.ndim))
        swapped = _swapped(left.ndim)
        keyed = not _is_weight(right)
        activations = keyed and not _is_weight(left)
        product = Product((left, right), query=left, key_order=swapped, keyed=keyed, activations=activations)
        applied = None
        if self._applies(left, plain, right):
            applied = Applied(left, left, plain, right, first + 1, plain, plain, added)
        elif self._applies(right, swapped, left):
            straight = self.maps[right].straight
            applied = Applied(right, straight, plain, left.transpose(-1, -2), first, swapped, swapped, added)
        return Reading(args, product, applied)

    def _read_einsum(self, args: tuple, found: einsum.Einsum) -> Reading:
        views, equation = list(found.operands), found.product
        activations = equation is not None and bool(equation.shared()) and not any(map(_is_weight, found.operands))
        product = Product(found.operands, keyed=found.keyed, activations=activations)
        applied: Applied | None = None
        for place, source in enumerate(found.operands):
            if source in self.maps and applied is None:
                applied, views[place] = self._applied_by_einsum(found, place)
        scoring = einsum.scoring(equation, found.sizes) if applied is None and equation is not None else None
        if scoring is not None:
            place, query_order, key_order = scoring
            query, views[place] = _view(found.operands[place], query_order)
            itself = query is found.operands[place]
            product = replace(product, query=query, place=place, key_order=key_order, itself=itself)
        return Reading((args[0], *views), product, applied)

    def _applied_by_einsum(self, found: einsum.Einsum, place: int) -> tuple[Applied | None, Tensor]:
        """Return how an einsum applies a map, or None if it does not; and the map as it should be given to it."""
        source, equation = found.operands[place], found.product
        plain = tuple(range(source.ndim))
        how, value = None, None
        if equation is not None:
            how = einsum.applying(equation if place == 0 else equation.turned, found.sizes)
            value = found.operands[1 - place]
        if how is None or value is None:  # values that are summed over heads, or projected, on the way
            weighs = found.weighs(place) and self._applies(source, plain, None)
            return Applied(source, source, map_order=plain) if weighs else None, source
        map_order, value_order, output_order = how
        if not self._applies(source, plain, value, rows=map_order[-2]):
            return None, source
        weights, view = _view(source, map_order)
        seen = value.permute(value_order)
        seen = seen.unsqueeze(1) if seen.ndim < weights.ndim else seen
        return Applied(source, weights, map_order, seen, 2 - place, value_order, output_order), view

    def _applies(self, x: Tensor, order: einsum.Order, value: Tensor | None, *, rows: int = -2) -> bool:
        """Return True if a factor is a map as its softmax left it, which a product applies to these values.

        Args:
            order: the order of its axes in which the product sums over keys.
            rows: the axis of the map's queries.
        """
        known = self.maps.get(x)
        if known is None:
            return False
        if known.changed:
            expected = known.shape[-2:] if einsum.is_plain(order) else known.shape[:-3:-1]
            if tuple(x.shape[-2:]) == tuple(expected):
                raise SeamError(
                    f"attention of shape {tuple(known.shape)} is changed after its softmax, by "
                    f"{', '.join(known.changed)}, before it is multiplied with the values, as where heads are mixed "
                    "(talking heads), gated or averaged. What the softmax gave is then not what weighs the values, so "
                    "no method that reads attention maps applies to this model."
                )
            return False
        if known.order != order:
            if known.order[:-2] == order[:-2] and known.shape[-1] == known.shape[-2]:
                raise SeamError(
                    f"a softmax of shape {tuple(known.shape)} is multiplied over its queries, not over its keys, so "
                    "its rows are not what each token reads. No method that reads attention maps applies to this model."
                )
            return False
        if value is not None and self._is_product(value):
            raise SeamError(
                f"a softmax of shape {tuple(known.shape)} is multiplied with a product of two activations, of shape "
                f"{tuple(value.shape)}, as in linear attention (a softmax over channels) or attention in two steps. "
                "That is no map from tokens to tokens, so no method that reads attention maps applies to this model."
            )
        scored = known.scores is not None and any(product.keyed for product in known.scores.products)
        # A gate or router is no product with keys, and its columns are not the tokens it is a row for.
        return scored or known.shape[rows] in (1, known.shape[-1])

    def _is_product(self, x: Tensor) -> bool:
        """Return True if a tensor is a product of two activations, whether scaled or shifted or not."""
        made = self.scores.get(x)
        return made is not None and made.main is not None and made.main.activations

    def _emit(self, applied: Applied, out: Tensor) -> None:
        known, weights = self.maps[applied.source], applied.weights
        if known.shape in self.waiting:
            self.waiting.remove(known.shape)
        self.maps[applied.source] = replace(known, softmax_input=None)  # a map that lives on need not keep its scores
        query, key, why = _operands(known, weights)
        scores, given = known.scores, known.softmax_input
        plain = scores is not None and scores.plain
        in_order = given is not None and given.ndim == len(applied.map_order)
        self.emit(
            AttentionCall(
                query=query,
                key=key,
                value=applied.value,
                output=None if applied.added or applied.value is None else out.permute(applied.output_order),
                weights=weights,
                softmax_input=given.permute(applied.map_order) if given is not None and in_order else given,
                scale=scores.scale if scores is not None and plain else 1.0,
                by_hand=True,
                plain=plain,
                no_query=why,
                keys=known.keys,
                in_parts=known.in_parts,
            )
        )


def _swapped(ndim: int) -> einsum.Order:
    """The axes with the last two exchanged."""
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def _hides(func: Callable[..., Any], args: tuple) -> bool:
    """Return True if a function sets some powers of e to zero, or weighs them by a mask."""
    if func in FILLS or func is Tensor.__setitem__:
        return len(args) == 3 and _is_zero(args[2])
    return SCALINGS.get(func) is mul


def over_keys(x: Tensor, args: tuple, kwargs: dict) -> bool:
    """Return True if a function of one tensor is over its last axis."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return dim in (-1, x.ndim - 1, [-1], (-1,), [x.ndim - 1], (x.ndim - 1,))


def with_values(reading: Reading, change: Callable[[Tensor], Tensor]) -> Reading:
    """The same product with its values changed; they are given and come back in the usual order of axes."""
    applied = reading.applied
    if applied is None or applied.value is None:
        raise SeamError("this method changes the values of attention, which an einsum of map and values hides.")
    value = change(applied.value)
    new = value.squeeze(1) if value.ndim > len(applied.value_order) else value
    new = new.permute(einsum.inverse(applied.value_order))
    place = applied.place
    return replace(
        reading, args=(*reading.args[:place], new, *reading.args[place + 1 :]), applied=replace(applied, value=value)
    )


def _is_weight(x: Tensor) -> bool:
    return isinstance(x, nn.Parameter) or (torch.is_grad_enabled() and x.is_leaf and x.requires_grad)


def _view(x: Tensor, order: einsum.Order) -> tuple[Tensor, Tensor]:
    """A view with its axes in this order, and the tensor again made of that view; the tensor itself if it has it."""
    if einsum.is_plain(order):
        return x, x
    view = x.permute(order)
    return view, view.permute(einsum.inverse(order))


def _map_after(func: Callable[..., Any], known: AttentionMap, old: Tensor, new: Tensor, args: tuple) -> AttentionMap:
    """Return the attention map that the result of a function of a map is."""
    plain = einsum.is_plain(known.order)
    if known.changed and (func in SAME_ENTRIES or _moved(func, args, old.ndim) is not None):
        return known
    if not known.changed and args and args[0] is old:
        if func in SAME_ENTRIES and new.shape == old.shape:
            return known
        if func in SAME_ENTRIES and plain and new.ndim in (3, 4, 5) and new.shape[-2:] == old.shape[-2:]:
            return replace(known, shape=new.shape, order=tuple(range(new.ndim)))
        if func in FILLS and len(args) == 3 and _is_zero(args[2]):
            return known
        if func is Tensor.__getitem__ and plain and _cuts_keys(args[1], old):
            given, last = known.softmax_input, args[1][-1] if isinstance(args[1], tuple) else args[1]
            first, stop = known.keys or (0, old.shape[-1])
            left = range(first, stop)[last]
            given = None if given is None else given[args[1]]
            return replace(known, shape=new.shape, softmax_input=given, keys=(left.start, left.stop))
        moved = _moved(func, args, old.ndim)
        if moved is not None:
            order = tuple(known.order[axis] for axis in moved)
            return replace(known, order=order, straight=old if plain else known.straight)
    return _after_change(func, known)


def _is_zero(x: Any) -> bool:  # noqa: ANN401
    """Return True if a value to fill with is zero: a number, or a tensor of one number."""
    return isinstance(x, (int, float, Tensor)) and (not isinstance(x, Tensor) or x.ndim == 0) and bool(x == 0)


def _after_change(func: Callable[..., Any], known: AttentionMap) -> AttentionMap:
    name = (resolve_name(func) or getattr(func, "__name__", "a function")).removeprefix("torch.")
    return replace(known, changed=(*known.changed, name), straight=None)


def _has_both(x: Tensor, known: AttentionMap) -> bool:
    """Return True if a tensor can still have an axis of the queries and one of the keys, or of some of them."""
    queries, keys = known.shape[-2:]
    sizes = list(x.shape)
    if queries not in sizes:
        return False
    sizes.remove(queries)
    return any(1 < size <= keys for size in sizes) or keys == 1


def _cuts_keys(index: object, x: Tensor) -> bool:
    """Return True if an index takes some of the keys and every query."""
    entries = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [x for x in entries if not isinstance(x, Tensor)]:
        entries = entries[1:] if entries[0] is Ellipsis else ()
        return len(entries) == 1 and isinstance(entries[0], slice)
    whole = all(isinstance(entry, slice) and entry == slice(None) for entry in entries[:-1])
    return len(entries) == x.ndim and whole and isinstance(entries[-1], slice)


def _moved(func: Callable[..., Any], args: tuple, ndim: int) -> tuple[int, ...] | None:
    """The axes of a tensor in the order in which a function puts them; None if it does something else."""
    axes = list(range(ndim))
    if func in SWAPS or func == TRANSPOSED:
        first, second = (-2, -1) if func == TRANSPOSED else args[1:3] if len(args) > 2 else (0, 0)
        axes[first], axes[second] = axes[second], axes[first]
        return tuple(axes)
    if func in PERMUTATIONS and len(args) > 1:
        given = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
        return tuple(axes[axis] for axis in given)
    return None


def _scores_after(
    func: Callable[..., Any], given: list[tuple[Tensor, Scores]], new: Tensor, args: tuple, kwargs: dict
) -> Scores:
    """Return the scores that the result of a function of scores is."""
    every = tuple(dict.fromkeys(p for _, scores in given for p in scores.products))[-MOST_PRODUCTS:]
    old, known = next(((x, s) for x, s in given if s.main is not None), given[0])
    first = bool(args) and args[0] is old
    if func in SAME_ENTRIES and first:
        return known
    if func in SCALINGS and first and len(args) > 1 and isinstance(args[1], (int, float)):
        return replace(known, scale=SCALINGS[func](known.scale, args[1]))
    if func in SHIFTS and len(given) == 1 and "alpha" not in kwargs and (first or func not in DIFFERENCES):
        return replace(known, plain=known.plain and new.shape == old.shape)
    stays = func in SHIFTS or func in SCALINGS or func in ELEMENTWISE
    if stays and new.shape == old.shape:
        return Scores(every, known.main, plain=False)
    if func in JOINS and new.shape[:-1] == old.shape[:-1] and next(tensors_in(args), None) is old:
        return Scores(every, known.main, plain=False)
    return Scores(every, None, plain=False)


def _operands(known: AttentionMap, weights: Tensor) -> tuple[Tensor | None, Tensor | None, str]:
    """The query and the key whose product the scores are, and if there is no one query, why."""
    scores = known.scores
    if scores is None:
        return None, None, "its scores are no product of two tensors that could be followed to the softmax"
    main, shared = scores.main, scores.products[0].operands if len(scores.products) == 1 else ()
    if main is None and len(shared) == 2 and shared[0].ndim != shared[1].ndim:
        sizes = " and ".join(str(tuple(x.shape)) for x in shared)
        return None, None, f"its scores are a product of tensors of {sizes}, one of which all samples share"
    if main is None or main.query is None or main.key is None:
        return None, None, "the product of queries and keys was rearranged, or mixed between heads, before the softmax"
    if main.query.shape[-2] != weights.shape[-2] or main.key.shape[-2] != weights.shape[-1]:
        return None, None, "the product that its scores come from has other queries and keys than its map"
    others = [product for product in scores.products if product is not main]
    if all(_reads(product, main) for product in others):
        return main.query, main.key, ""
    shapes = ", ".join(str(tuple(product.shape)) for product in scores.products)
    why = f"its scores come from {len(scores.products)} products, of shapes {shapes}, that do not read one query"
    return None, main.key, why


def _reads(product: Product, main: Product) -> bool:
    """Return True if a product that also makes scores has the main product's own query, or its key, as an operand."""
    if main.itself and any(x is main.query for x in product.operands):
        return True
    key = [] if main.read is None else _origins(main.read)
    return any(x is main.read or x.grad_fn in key for x in product.operands if x.grad_fn is not None)


MOVES = ("Transpose", "View", "UnsafeView", "ReshapeAlias", "Permute", "T", "Expand", "Clone", "Unsqueeze", "Squeeze",
         "Div", "Mul", "ToCopy", "Alias")  # fmt: skip


def _origins(x: Tensor) -> list[object]:
    """The nodes of the graph that a tensor was made by, as far as it was only moved, cast or scaled."""
    node, found = x.grad_fn, []
    while node is not None:
        found.append(node)
        before = [one for one, _ in node.next_functions if one is not None]
        moved = any(node.name() == f"{name}Backward{n}" for name in MOVES for n in range(3))
        node = before[0] if moved and len(before) == 1 else None
    return found
