"""The signature of a pass: what was done to tokens, read off the graph of the pass.

What is measured of a model holds for another input only if the model does the same with its tokens. A `Route` holds
the operations between the tokens and what the last block gives, and the indices, axes and matrices that these moved
rows by. It is read once, which takes some milliseconds. `Route.nodes_in` asks of another pass whether it is the same.

What an answer is made of after the last block is part of a route by its operations alone. Its indices are not:
which tokens an answer reads is measured in every call.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.graph_nodes import node_of
from vitrail.capture.seams.call import AttentionCall

Node = Any
"""A place in autograd's graph."""
INDICES = {
    "IndexBackward0": ("_saved_indices",),
    "GatherBackward0": ("_saved_index", "_saved_dim"),
    "TakeBackward0": ("_saved_index",),
    "IndexSelectBackward0": ("_saved_index", "_saved_dim"),
    "WhereBackward0": ("_saved_condition",),
    "TopkBackward0": ("_saved_indices", "_saved_dim"),
    "SortBackward0": ("_saved_indices", "_saved_dim"),
    "SortBackward1": ("_saved_indices", "_saved_dim"),
    "ScatterBackward0": ("_saved_index", "_saved_dim"),
    "ScatterAddBackward0": ("_saved_index", "_saved_dim"),
    "ScatterReduceBackward0": ("_saved_index", "_saved_dim"),
    "IndexAddBackward0": ("_saved_index", "_saved_dim"),
    "IndexCopyBackward0": ("_saved_index", "_saved_dim"),
    "IndexFillBackward0": ("_saved_index", "_saved_dim"),
    "IndexPutBackward0": ("_saved_indices",),
    "MaskedScatterBackward0": ("_saved_mask",),
    "MaskedSelectBackward0": ("_saved_mask",),
    "RepeatInterleaveBackward0": ("_saved_repeats",),
    "IndexReduceBackward0": ("_saved_index", "_saved_dim"),
    "PutBackward0": ("_saved_index",),
    "GridSampler2DBackward0": ("_saved_grid",),
    "GridSampler3DBackward0": ("_saved_grid",),
}
"""Operations that move rows by tensors, and the names of these."""
AXES = {
    "RollBackward0": ("_saved_shifts", "_saved_dims"),
    "FlipBackward0": ("_saved_dims",),
    "SliceBackward0": ("_saved_dim", "_saved_start", "_saved_end", "_saved_step"),
    "SelectBackward0": ("_saved_dim", "_saved_index"),
    "PermuteBackward0": ("_saved_dims",),
    "TransposeBackward0": ("_saved_dim0", "_saved_dim1"),
    "CatBackward0": ("_saved_dim",),
    "StackBackward0": ("_saved_dim",),
    "UnbindBackward0": ("_saved_dim",),
    "SplitBackward0": ("_saved_dim", "_saved_split_size"),
    "UnfoldBackward0": ("_saved_dimension", "_saved_size", "_saved_step"),
    "CumsumBackward0": ("_saved_dim",),
    "SplitWithSizesBackward0": ("_saved_dim", "_saved_split_sizes"),
    "ConstantPadNdBackward0": ("_saved_pad",),
    "ReflectionPad1DBackward0": ("_saved_padding",),
    "ReplicationPad1DBackward0": ("_saved_padding",),
    "SliceScatterBackward0": ("_saved_dim", "_saved_start", "_saved_end", "_saved_step"),
    "SelectScatterBackward0": ("_saved_dim", "_saved_index"),
    "DiagonalBackward0": ("_saved_offset", "_saved_dim1", "_saved_dim2"),
    "RepeatBackward0": ("_saved_repeats",),
    "ChannelShuffleBackward0": ("_saved_groups",),
    "PixelShuffleBackward0": ("_saved_upscale_factor",),
    "PixelUnshuffleBackward0": ("_saved_downscale_factor",),
}
"""Operations that move rows by numbers."""
JOINS = ("CatBackward0", "StackBackward0")
LAST = 2**64 - 1
"""How the graph writes the last axis."""
SMALL = 1 << 20
"""How many entries a constant has at most that is looked at."""
TURNED = ("TransposeBackward0", "PermuteBackward0")
VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


class AnyView:
    """The kind of all views: which of them torch makes hangs on the modes that are on."""


PRODUCTS = {
    "BmmBackward0": (0, "_saved_self", 1, "_saved_mat2"),
    "MmBackward0": (0, "_saved_self", 1, "_saved_mat2"),
    "BaddbmmBackward0": (1, "_saved_batch1", 2, "_saved_batch2"),
    "AddmmBackward0": (1, "_saved_mat1", 2, "_saved_mat2"),
}
"""Products of matrices: the edge of each factor, and its name."""
GATES: dict[str, tuple[tuple[int, int | None, str], ...]] = {
    "MulBackward0": ((1, 0, "_saved_self"), (0, 1, "_saved_other")),
    "DivBackward0": ((0, 1, "_saved_other"),),
    "AddcmulBackward0": ((2, 1, "_saved_tensor1"), (1, 2, "_saved_tensor2")),
    "LerpBackward0": ((0, None, "_saved_weight"),),
    "LerpBackward1": ((0, 2, "_saved_weight"),),
    "MaskedFillBackward0": ((0, None, "_saved_mask"),),
    "MaskedFillBackward1": ((0, None, "_saved_mask"),),
    "WhereBackward0": ((0, 1, "_saved_condition"), (1, 0, "_saved_condition")),
    "AddBackward0": ((1, None, "_saved_alpha"),),
    "SubBackward0": ((1, None, "_saved_alpha"),),
}
"""Operations that may close the way of rows: the edge these come by, that of a constant if it has one, and its name."""
SIZES = "_saved_self_sym_sizes"
OWN = "saved by a function of the model's own"
TABLE = "EmbeddingBackward0"
UNSEEN = ("CopySlices", "AsStridedBackward0")
"""Operations that do not show where they put rows."""


GraphPlace = tuple[int, tuple[int, ...]]
"""Where a node stands: the number of a node of a route, and the edges that lead from there to it."""


@dataclass(frozen=True, eq=False)
class GraphEnds:
    """The places at which the graph of a pass is read."""

    nodes: tuple[Node, ...]  # of all that follows, as far as it is in the graph
    tokens: frozenset[Node]  # what enters the first block, the operands of calls, what the last block gives
    maps: frozenset[Node]  # attention maps whose queries and keys are among them
    leaving: Node | None  # what the last block gives
    answer: Node | None
    complete: bool  # whether all that happens to tokens is in the graph
    roots: Sequence[Tensor]  # where the graph begins
    ids: tuple[Tensor, ...] = ()  # the texts that the model was given, as token ids
    counts: tuple[int, int] = (1, 1)  # how many samples there are, and how many words each has
    is_stored: Callable[[Tensor], bool] | None = None  # whether a tensor is a weight of the model


def ends_of(
    calls: Iterable[AttentionCall],
    answer: Tensor,
    *,
    entering: Tensor | None,
    leaving: Tensor | None,
    roots: Sequence[Tensor],
    ids: tuple[Tensor, ...],
    counts: tuple[int, int] = (1, 1),
    is_stored: Callable[[Tensor], bool] | None = None,
) -> GraphEnds:
    """Return where the graph of a pass is read.

    Args:
        entering: what enters the first block; None where no block is known.
        leaving: what the last block gives.
        roots: where the graph begins.
        ids: the texts that the model was given, as token ids.
        counts: how many samples there are, and how many words each has.
        is_stored: whether a tensor is a weight of the model.
    """
    given, maps = [entering, leaving], []
    for call in calls:
        given += [call.query, call.key, call.value]
        (maps if call.query is not None else given).append(call.weights)
    tokens = [x.grad_fn or node_of(x) for x in given if x is not None]
    of_maps = [x.grad_fn for x in maps if x is not None and x.grad_fn is not None]
    known = [node for node in tokens if node is not None]
    end = None if leaving is None else leaving.grad_fn
    return GraphEnds(
        (*known, *of_maps, *(() if answer.grad_fn is None else (answer.grad_fn,))),
        frozenset(known),
        frozenset(of_maps),
        end,
        answer.grad_fn,
        answer.grad_fn is not None and len(known) == len(tokens),
        roots,
        ids,
        counts,
        is_stored,
    )


Step = tuple[int, int, type | None, int]
"""An edge of a node: which one, which output of the node there it reads, and the kind of that node; no kind and its
number where it was met before. The number of a node that is met is -1, and of one that is not followed `ASIDE`."""
ASIDE = -2


@dataclass(frozen=True, eq=False)
class Route:
    """The way of tokens through one pass: the kinds of all nodes on it, and what rows were moved by."""

    kinds: tuple[type, ...]  # of the ends
    same: tuple[int, ...]  # the number of each end
    steps: tuple[tuple[Step, ...], ...]  # all edges of every node, in the order in which nodes are met
    numbers: tuple[tuple[int, str, object], ...]  # the number of a node, the name of what it saved, its value
    sizes: tuple[tuple[int, tuple[int, ...]], ...]  # the shape of which a node is a view
    tensors: tuple[tuple[int, str, object], ...]  # the same where it holds tensors
    tables: tuple[tuple[int, int], ...]  # tables of embeddings, and which of the texts given they were asked for
    hidden: bool  # whether something on the way does not show itself in the graph
    counts: tuple[int, int] = (1, 1)  # how many samples there were, and how many words each had

    def nodes_in(self, ends: GraphEnds) -> list[Node] | None:
        """Return the nodes of another pass in the order of this route; None unless the same was done to tokens there.

        All of it stands in one function, because every call of an explanation passes it.
        """
        nodes, kinds = list(dict.fromkeys(ends.nodes)), _canonical
        places = {node: number for number, node in enumerate(nodes)}
        if (
            tuple([kinds.get(type(node)) for node in ends.nodes]) != self.kinds
            or tuple([places[node] for node in ends.nodes]) != self.same
        ):
            return None
        try:
            for node, steps in zip(nodes, self.steps, strict=False):  # nodes are added on the way
                edges = node.next_functions
                if len(edges) != len(steps):
                    return None
                for place, output, kind, met in steps:
                    below, read = edges[place]
                    if read != output or (
                        below is not nodes[met] if kind is None else kinds.get(type(below)) is not kind
                    ):
                        return None
                    if met == -1:
                        nodes.append(below)
        except IndexError:  # a node of fewer edges
            return None
        return nodes if self._moves_alike(nodes, ends) else None

    def _moves_alike(self, nodes: list[Node], ends: GraphEnds) -> bool:
        """Return True if nodes moved rows by the same, and tables were asked for the same texts."""
        if any([getattr(nodes[number], name) != value for number, name, value in self.numbers]):
            return False
        shapes = [(getattr(nodes[number], SIZES), size) for number, size in self.sizes]
        if any([now != size and not _is_resized(now, size, ends.counts, self.counts) for now, size in shapes]):
            return False
        if any([_asked_text(nodes[number], ends.ids) != text for number, text in self.tables]):
            return False
        return all(_is_same(_saved(nodes[number], name), value) for number, name, value in self.tensors)


def places_of(wanted: Collection[Node], nodes: Sequence[Node]) -> dict[Node, GraphPlace]:
    """Return where some nodes of a pass stand: on its route, or below it, as what is made of weights alone."""
    places: dict[Node, GraphPlace] = {node: (number, ()) for number, node in enumerate(nodes)}
    waiting = list(nodes)
    for node in waiting:  # more are added on the way
        if all(one in places for one in wanted):
            break
        number, edges = places[node]
        for edge, (below, _) in enumerate(node.next_functions):
            if below is not None and below not in places:
                places[below] = number, (*edges, edge)
                waiting.append(below)
    return {node: places[node] for node in wanted if node in places}


def node_at(place: GraphPlace, nodes: Sequence[Node]) -> Node | None:
    """Return the node that stands at a place of a pass; None if there is none.

    Args:
        nodes: of the pass, in the order of the route.
    """
    node = nodes[place[0]]
    for edge in place[1]:
        edges = () if node is None else node.next_functions
        node = edges[edge][0] if edge < len(edges) else None
    return node


def _is_resized(now: tuple[int, ...], known: tuple[int, ...], counts: tuple[int, int], then: tuple[int, int]) -> bool:
    """Return True if axes of a shape have grown as the number of samples did, of words, or of both together."""
    (samples, words), (few, short) = counts, then
    pairs = ((1, 1), (samples, few), (words, short), (samples * words, few * short))
    same = [any(a * less == b * more for more, less in pairs) for a, b in zip(now, known, strict=False)]
    return len(now) == len(known) and all(same)


def kind_of(node: Node | None) -> type:
    """Return the kind of a node; views count as one."""
    kind = type(node)
    return _canonical.get(kind) or _canonical.setdefault(kind, AnyView if kind.__name__ in VIEWS else kind)


_canonical: dict[type, type] = {}
"""By the class of a node its kind, for all that were met in routes."""


def read_route(ends: GraphEnds) -> Route:
    """Return what was done to tokens in a pass."""
    found = ends.nodes
    every = _nodes_below(found)
    on_way = _made_of_tokens(every, frozenset(map(node_of, ends.roots)))
    numbers, steps = {node: number for number, node in enumerate(dict.fromkeys(found))}, list[list[Step]]()
    order = list(numbers)
    for node in order:
        steps.append([])
        for place, (below, output) in enumerate(every[node]):
            if below not in on_way:
                steps[-1].append((place, output, kind_of(below), ASIDE))
                continue
            if below in numbers:
                steps[-1].append((place, output, None, numbers[below]))
                continue
            numbers[below] = len(order)
            order.append(below)
            steps[-1].append((place, output, kind_of(below), -1))
    tokens = _reached_from(ends.tokens, every, ends.maps - ends.tokens)
    maps = _reached_from(ends.maps, every, tokens) - tokens
    graph = _Graph(every, on_way, _below_sums(order, every), ends)
    gates = [x for x in order if x in tokens and x.name() in GATES]
    moved = bool(gates) and any(_moves_rows(x, graph) for x in order if x in tokens)
    moves = [(numbers[x], *one) for x in order if x in tokens for one in _moves_of(x, graph)]
    moves += [(numbers[x], *one) for x in order if x in maps for one in _axes_of(x)]
    # Where rows are moved, zeros choose between those that were and those that were not.
    moves += [(numbers[x], *one) for x in gates if moved for one in _gates_of(x, graph)]
    sizes: list[Any] = [(number, size) for number, name, size in moves if name == SIZES]
    plain = [one for one in moves if _is_plain(one[2]) and one[1] not in (SIZES, OWN)]
    rest = [one for one in moves if (not _is_plain(one[2]) and one[1] != SIZES) or one[1] == OWN]
    tables = [(numbers[x], _asked_text(x, ends.ids)) for x in order if x in tokens and x.name() == TABLE]
    unseen = any(x in tokens and x.name().startswith(UNSEEN) for x in order)
    kinds, same = tuple(map(kind_of, found)), tuple(numbers[node] for node in found)
    hidden = unseen or _reads_early(graph)
    found_steps = tuple(map(tuple, steps))
    saved = tuple(plain), tuple(sizes), tuple(rest), tuple(tables)
    return Route(kinds, same, found_steps, *saved, hidden, ends.counts)


Edges = dict[Node, tuple[tuple[Node | None, int], ...]]
"""The edges of every node."""


def _nodes_below(ends: Sequence[Node]) -> Edges:
    """Return all nodes that these are made of, with their edges."""
    found: Edges = {}
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = node.next_functions
        waiting += [below for below, _ in found[node] if below is not None]
    return found


def _made_of_tokens(every: Edges, roots: frozenset[Node]) -> set[Node]:
    """Return the nodes that are not made of parameters alone."""
    above: dict[Node, list[Node]] = {}
    for node, edges in every.items():
        for below, _ in edges:
            if below is not None:
                above.setdefault(below, []).append(node)
    waiting = [node for node, edges in every.items() if _begins(node, edges, roots)]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += above.get(node, [])
    return found


def _begins(node: Node, edges: tuple[tuple[Node | None, int], ...], roots: frozenset[Node]) -> bool:
    """Return True if something other than a parameter enters the graph at this node."""
    return node in roots or node.name() == TABLE or any(below is None for below, _ in edges)


def _reached_from(start: Iterable[Node], every: Edges, stops: Collection[Node]) -> set[Node]:
    """Return the nodes that these are made of, themselves included; nothing behind a stop."""
    found: set[Node] = set()
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        if node in found or node in stops:
            continue
        found.add(node)
        waiting += [below for below, _ in every[node] if below is not None]
    return found


@dataclass(frozen=True, eq=False)
class _Graph:
    """The graph of a pass while it is read."""

    every: Edges
    on_way: set[Node]  # what is made of tokens
    summed: set[Node]  # what a sum is taken of
    ends: GraphEnds


def _below_sums(order: Sequence[Node], every: Edges) -> set[Node]:
    """Return the nodes that sums and means are taken of."""
    sums = [node for node in order if node.name().startswith(("SumBackward", "MeanBackward"))]
    return {below for node in sums for below, _ in every[node] if below is not None}


def _reads_early(graph: _Graph) -> bool:
    """Return True if the answer can read tokens other than by what the last block gives."""
    leaving, answer = graph.ends.leaving, graph.ends.answer
    if leaving is None or answer is None:
        return False
    below = _reached_from([leaving], graph.every, set()) - {leaving}
    return bool(_reached_from([answer], graph.every, {leaving}) & below & graph.on_way)


def _moves_of(node: Node, graph: _Graph) -> list[tuple[str, object]]:
    """Return what an operation moved rows by, each with the name under which the graph holds it."""
    name, edges = node.name(), graph.every[node]
    made = [below in graph.on_way for below, _ in edges]
    if name == "WhereBackward0" and not all(made):
        return []  # rows are left out, but none is moved
    if name == TABLE and made[0]:  # a table of rows of tokens
        return [("_saved_indices", _kept(_saved(node, "_saved_indices")))]
    if name in INDICES:
        return [(one, _kept(_saved(node, one))) for one in INDICES[name] if hasattr(node, one)]
    if name in VIEWS and _is_turned(edges[0][0], graph.every):
        return [(SIZES, _saved(node, SIZES))]
    matrix = _matrix_of(node, made, graph)
    return [*_axes_of(node), *([] if matrix is None else [(matrix, _kept(_saved(node, matrix)))])]


def _matrix_of(node: Node, made: list[bool], graph: _Graph) -> str | None:
    """Return the name of a matrix without a gradient that rows are put together by; None where there is none."""
    name = node.name()
    if name in PRODUCTS:
        left, own, right, other = PRODUCTS[name]
        if made[right] and graph.every[node][left][0] is None:
            return own
        if made[left] and graph.every[node][right][0] is None:
            stored, matrix = graph.ends.is_stored, _saved(node, other)
            return None if stored is None or not isinstance(matrix, Tensor) or stored(matrix) else other
        return None
    if name == "MulBackward0" and node in graph.summed and sum(made) == 1:
        return "_saved_other" if made[0] else "_saved_self"
    return None


def _moves_rows(node: Node, graph: _Graph) -> bool:
    """Return True if an operation moves rows by more than axes that are exchanged, and other than along the last."""
    name, made = node.name(), [below in graph.on_way for below, _ in graph.every[node]]
    if name in PRODUCTS:
        return _matrix_of(node, made, graph) is not None
    if name in TURNED or name in JOINS or name in GATES or (name not in INDICES and name not in AXES):
        return False
    dim, sizes = getattr(node, "_saved_dim", None), getattr(node, SIZES, None)
    if not isinstance(dim, int) or sizes is None:
        return True
    return dim not in (len(sizes) - 1, LAST)


def _gates_of(node: Node, graph: _Graph) -> list[tuple[str, object]]:
    """Return the constants of whole numbers that may close the way of rows at an operation."""
    edges, found = graph.every[node], []
    for through, constant, name in GATES[node.name()]:
        if edges[through][0] not in graph.on_way or (constant is not None and edges[constant][0] is not None):
            continue
        gate = _saved(node, name)
        if isinstance(gate, Tensor) and gate.numel() <= SMALL and not gate.requires_grad and _is_whole(gate):
            found.append((name, _kept(gate)))
        elif isinstance(gate, (int, float)):
            found.append((name, gate))
    return found


def _is_whole(x: Tensor) -> bool:
    """Return True if a tensor holds whole numbers alone, as a choice does."""
    return not x.is_floating_point() or bool((x == x.round()).all())


def _is_turned(node: Node | None, every: Edges) -> bool:
    """Return True if a view is taken of a tensor whose axes were exchanged."""
    while node is not None and node.name() == "CloneBackward0":
        node = every[node][0][0]
    return node is not None and node.name() in TURNED


def _axes_of(node: Node) -> list[tuple[str, object]]:
    """Return the numbers by which an operation moved rows, or what an autograd function of the model's own kept."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return [(OWN, _kept(_saved(node, OWN)))]
    return [(one, _saved(node, one)) for one in AXES.get(node.name(), ()) if hasattr(node, one)]


def _saved(node: Node, name: str) -> object:
    """Return what the graph holds under a name; of an autograd function of the model's own, whole numbers alone."""
    if name != OWN:
        return getattr(node, name, None)
    kept = [x for x in node.saved_tensors if x is not None and not x.is_floating_point()]
    own = {key: x for key, x in vars(node).items() if isinstance(x, (int, str, tuple)) and not hasattr(x, "_fields")}
    plain = [(key, x) for key, x in sorted(own.items()) if _is_plain(x)]
    return (*kept, *plain)


def _is_plain(x: object) -> bool:
    """Return True for whole numbers, texts and tuples of them."""
    return all(map(_is_plain, x)) if isinstance(x, tuple) else isinstance(x, (int, str))


def _kept(x: object) -> object:
    """Return a value with copies of its tensors; axes along which a tensor repeats itself are kept once."""
    if isinstance(x, (tuple, list)):
        return tuple(map(_kept, x))
    if not isinstance(x, Tensor):
        return x
    return x.shape, _once(x).clone()


def _once(x: Tensor) -> Tensor:
    """Return a tensor with one entry along axes that repeat themselves."""
    return x.detach()[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())]


def _is_same(now: object, known: object) -> bool:
    """Return True if a value is what was kept of an earlier one."""
    if isinstance(now, Tensor):
        if not isinstance(known, tuple) or len(known) != 2 or now.shape != known[0] or type(known[1]) is not Tensor:
            return False
        own = _once(now)
        if own.shape != known[1].shape or own.dtype != known[1].dtype or own.device != known[1].device:
            return False
        return torch.equal(own, known[1])
    if isinstance(now, (tuple, list)):
        return isinstance(known, tuple) and len(now) == len(known) and all(map(_is_same, now, known))
    return type(now) is type(known) and now == known


def _asked_text(node: Node, ids: tuple[Tensor, ...]) -> int:
    """Return which of the texts given a table of embeddings was asked for; -1 where it is none of them."""
    asked = node._saved_indices
    for number, text in enumerate(ids):
        if asked.numel() != text.numel() or asked.shape[-1] != text.shape[-1]:
            continue
        same = asked.data_ptr() == text.data_ptr() and asked.is_contiguous() and text.is_contiguous()
        if same or torch.equal(asked.reshape(text.shape).to(text), text):
            return number
    return -1
