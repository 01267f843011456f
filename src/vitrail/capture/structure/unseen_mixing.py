"""Operations that mix tokens after the last attention that was seen, measured on the graph of one pass.

What an answer reads of the tokens after the last attention is its readout: one token, a mean or a maximum over tokens,
all tokens side by side. Two things there are no readout, and a walk that begins below them would leave them out:

* A module that keeps its tokens and mixes them: attention that is not seen, linear attention, a convolution, a
  recurrence, a layer that mixes along the tokens. Every token may then come to every later place.
* A product of numbers that are made of different tokens: weights that depend on the content, as those of attention do,
  whatever normalises them. The gate of one token on itself is none, nor is what is computed after tokens were pooled.

Everything here is asked of tensors and nodes of a graph in which what seen attention gives is cut or muted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from vitrail.capture.refusals import AT_THE_INPUTS, SEEN
from vitrail.capture.structure.token_codes import MIXED, State, in_graph, sources, tensor_of
from vitrail.capture.structure.trace import Execution

Node = Any
Edge = tuple[Node, int]
"""A node of the graph, and which of its results."""
NOISE = 1e-6
"""A change that is smaller than the largest by this factor is rounding."""


@dataclass(frozen=True, eq=False)
class TokenState:
    """A tensor of the graph with the number of the token that each of its positions belongs to.

    Args:
        tokens: the numbers, one for each position: the shape of the tensor without its channels. Only tokens of one
            sample have one, all others are -1.
        channels: the axis of the tensor that one position has along.
    """

    tensor: Tensor | State
    tokens: Tensor
    channels: int

    @property
    def node(self) -> Node:
        """The node of the tensor in the graph."""
        return self.tensor.node if isinstance(self.tensor, State) else get_gradient_edge(self.tensor).node


def batch_first_state(stream: Tensor | State, *, first: bool) -> TokenState:
    """Return the tokens of the first sample of a residual stream `[b, t, d]`, or `[t, b, d]`."""
    batch, count = stream.shape[:2] if first else stream.shape[1::-1]
    tokens = torch.full((batch, count), -1)
    tokens[0] = torch.arange(count)
    return TokenState(stream, tokens if first else tokens.T, 2)


def result_state(result: Tensor, order: Sequence[int], batch: int) -> TokenState:
    """Return the tokens of the first sample of what attention gave.

    Args:
        order: the axes of the result in the order `[b, h, t, n]` or `[b * h, t, n]`.
    """
    straight = result.permute(tuple(order)).shape
    tokens = torch.full(straight[:-1], -1)
    tokens[: straight[0] // batch] = torch.arange(straight[-2])
    back = torch.argsort(torch.tensor(order)).tolist()
    return TokenState(result, tokens[..., None].permute(back).squeeze(order[-1]), order[-1])


def find_unseen_mixing(answer: Tensor, states: Sequence[TokenState], runs: Iterable[Execution]) -> str | None:
    """Return what mixes tokens between some states and the answer, in words; None if nothing does.

    Args:
        states: the tokens after the last attention, where the graph between them and the answer is asked.
        runs: the modules that ran after them, in the order in which they began.
    """
    states = [state for state in states if state.tensor.requires_grad]
    if not states or not answer.requires_grad or not _reads_several(answer, states):
        return None
    behind = _nodes_behind(get_gradient_edge(answer).node)
    reaching = [run for run in runs if run.gave is not None and run.gave.grad_fn in behind]
    apart = _find_apart(reaching, states)
    unclear = (run for run in reaching if not {id(run.given[0]), id(run.gave)} <= apart)
    module = next((run for run in unclear if _mixes(run, states)), None)
    if module is not None:
        return _unseen(f"{type(module.module).__name__} mixes tokens and gives as many as it is given")
    node = next(_mixing_products(answer, states), None)
    if node is not None:
        return _unseen(f"numbers made of different tokens are multiplied with each other ({_operation(node)})")
    return None


def _unseen(seen: str) -> str:
    """Return why a walk cannot begin at the last attention that was seen."""
    return (
        f"after the last attention that was seen, {seen}, as attention that is written in another way, linear "
        "attention, a convolution or a recurrence does. What it moves between tokens is in no attention map, so a walk "
        f"that begins before it would leave it out. {SEEN} {AT_THE_INPUTS}"
    )


def _operation(node: Node) -> str:
    """Return the name of the operation that a node is the gradient of."""
    return node.name().rpartition("::")[2].rstrip("0123456789").removesuffix("Backward")


def _reads_several(answer: Tensor, states: Sequence[TokenState]) -> bool:
    """Return True if some row of the answer may read several tokens."""
    seed = torch.randn(answer.shape, generator=torch.Generator().manual_seed(0)).to(answer)
    read = _token_gradients(answer, states, seed)
    if sum(len(tokens) for tokens in read) <= 1:
        return False
    if answer.ndim < 3:
        return True
    rows = torch.arange(answer.shape[:2].numel(), device=answer.device).view(
        *answer.shape[:2], *[1] * (answer.ndim - 2)
    )
    return any(found is not None and bool((found == MIXED).any()) for found in _fed([(answer, rows)], states))


def _token_gradients(answer: Tensor, states: Sequence[TokenState], seed: Tensor) -> list[Tensor]:
    """Return the tokens of each state at which the gradient of the answer arrives."""
    tensors = [in_graph(state.tensor) for state in states]
    return _tokens_reached(states, torch.autograd.grad(answer, tensors, seed, retain_graph=True, allow_unused=True))


def _tokens_reached(states: Sequence[TokenState], found: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the tokens of each state at which a gradient arrives."""
    return [
        state.tokens[(gradient.movedim(state.channels, -1) != 0).any(dim=-1).cpu()].unique()
        for state, gradient in zip(states, found, strict=True)
        if gradient is not None
    ]


def _fed(rows: list[tuple[Tensor, Tensor]], states: Sequence[TokenState]) -> list[Tensor | None]:
    """Return the row that every position of every state feeds, without positions that are no token."""
    found: list[Tensor | None] = [None] * len(states)
    for channels in {state.channels for state in states}:
        same = [place for place, state in enumerate(states) if state.channels == channels]
        answers = sources(rows, [states[place].tensor for place in same], channels=channels)
        for place, fed in zip(same, answers, strict=True):
            found[place] = None if fed is None else fed[(states[place].tokens >= 0).to(fed.device)]
    return found


def _find_apart(runs: Sequence[Execution], states: Sequence[TokenState]) -> set[int]:
    """Return the ids of tensors that hold the tokens of some states apart, each in one row of their leading axes.

    One question is asked for all tensors of one leading shape. Where its answer is no, each half of them is asked.
    """
    alike: dict[torch.Size, list[Tensor]] = {}
    for run in runs:
        for x in (run.given[0] if run.intact else None, run.gave):
            if x is not None and x.requires_grad and x.ndim >= 3:
                alike.setdefault(x.shape[:-1], []).append(x)
    apart: set[int] = set()
    waiting = [list({id(x): x for x in tensors}.values()) for tensors in alike.values()]
    while waiting:
        tensors = waiting.pop()
        if _are_apart(tensors, states):
            apart.update(map(id, tensors))
        elif len(tensors) > 1:
            half = len(tensors) // 2
            waiting += [tensors[:half], tensors[half:]]
    return apart


def _are_apart(tensors: Sequence[Tensor], states: Sequence[TokenState]) -> bool:
    """Return True if every token feeds the same one row of all tensors, and no two tokens of a state the same."""
    numbers = torch.arange(tensors[0].shape[:-1].numel(), device=tensors[0].device).view(*tensors[0].shape[:-1], 1)
    for state, fed in zip(states, _fed([(x, numbers) for x in tensors], states), strict=True):
        if fed is None:
            continue
        if bool((fed == MIXED).any()):
            return False
        tokens = state.tokens[state.tokens >= 0].to(fed.device)[fed >= 0]
        rows = fed[fed >= 0]
        pairs = torch.stack([tokens, rows], dim=1).unique(dim=0)
        if not len(pairs) == len(tokens.unique()) == len(rows.unique()):
            return False
    return True


def _mixes(run: Execution, states: Sequence[TokenState]) -> bool:
    """Return True if a module keeps the number of its tokens, and some token feeds several of those it gives."""
    given, gave = run.given[0], run.gave
    if gave is None or not given.requires_grad or not gave.requires_grad or not 3 <= given.ndim == gave.ndim:
        return False
    kept = [axis for axis in range(given.ndim) if given.shape[axis] == gave.shape[axis] > 1]
    if run.intact:
        apart = [axis for axis in kept if _holds_tokens(given, axis, states) is True]
    else:  # as it was before the module wrote into it is not known
        counts = {len(state.tokens[state.tokens >= 0].unique()) for state in states}
        apart = [axis for axis in kept if given.shape[axis] in counts]
    return bool(apart) and all(_holds_tokens(gave, axis, states) is False for axis in apart)


def _holds_tokens(x: Tensor, axis: int, states: Sequence[TokenState]) -> bool | None:
    """Return True if tokens lie apart along an axis, False if one of them feeds several places along it, else None."""
    numbers = torch.arange(x.shape[axis], device=x.device).view(*[-1 if i == axis else 1 for i in range(x.ndim)])
    apart = False
    for fed in _fed([(x, numbers)], states):
        if fed is None:
            continue
        if bool((fed == MIXED).any()):
            return False
        apart = apart or len(fed[fed >= 0].unique()) > 1
    return True if apart else None


def _mixing_products(answer: Tensor, states: Sequence[TokenState]) -> Iterator[Node]:
    """Give the nodes between states and an answer that multiply numbers which are made of different tokens."""
    ends = {state.node for state in states}
    joining = list(_joining_nodes(get_gradient_edge(answer).node, ends))
    if not joining:
        return
    seeds = _seeds(answer, states, [node for node, _ in joining])
    halves = list(_halves(states))
    for node, edges in joining:
        if _multiplies_tokens(node, edges, seeds.get(node, ()), halves, states):
            yield node


def _joining_nodes(start: Node, ends: set[Node]) -> Iterator[tuple[Node, list[Edge]]]:
    """Give the nodes with several arguments that depend on some ends, first to last, with where these come from."""
    depends: dict[Node, bool] = dict.fromkeys(ends, True)
    waiting = [start]
    while waiting:
        node = waiting[-1]
        before = [(one, place) for one, place in node.next_functions if one is not None]
        unknown = [one for one, _ in before if one not in depends]
        if node not in depends and unknown:
            waiting += unknown
            continue
        waiting.pop()
        if node in depends:
            continue
        edges = [edge for edge in before if depends[edge[0]]]
        depends[node] = bool(edges)
        if len(edges) > 1:
            yield node, list(dict.fromkeys(edges))


def _seeds(answer: Tensor, states: Sequence[TokenState], nodes: list[Node]) -> dict[Node, tuple[Tensor | None, ...]]:
    """Return random gradients of what each of some nodes gave; None for a result that the answer does not read."""
    generator, found = torch.Generator().manual_seed(1), {}

    def keep(node: Node, given: Sequence[Tensor | None]) -> None:
        drawn = (None if x is None else torch.randn(x.shape, generator=generator).to(x) for x in given)
        found[node] = tuple(drawn)

    handles = [node.register_prehook(partial(keep, node)) for node in nodes]
    try:
        tensors = [in_graph(state.tensor) for state in states]
        torch.autograd.grad(answer, tensors, torch.ones_like(answer), retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _halves(states: Sequence[TokenState]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Give random directions of the states that move one half of the tokens, and those that move the other half."""
    generator = torch.Generator().manual_seed(2)
    named = torch.cat([state.tokens[state.tokens >= 0].cpu() for state in states]).unique()
    chosen = [named % 2 == 0, torch.randperm(len(named), generator=generator) < len(named) // 2]
    for one in chosen:
        yield _directions(states, named[one], generator), _directions(states, named[~one], generator)


def _directions(states: Sequence[TokenState], tokens: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Return random directions of states that are zero at all but some tokens."""
    found = []
    for state in states:
        drawn = torch.randn(state.tensor.shape, generator=generator).to(tensor_of(state.tensor))
        moved = torch.isin(state.tokens.cpu(), tokens).to(drawn.device)
        found.append(drawn * moved.unsqueeze(state.channels))
    return found


def _nodes_behind(start: Node) -> set[Node]:
    """Return all nodes that a walk back through the graph meets."""
    waiting, known = [start], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in known:
            known.add(node)
            waiting += [before for before, _ in node.next_functions]
    return known


def _multiplies_tokens(
    node: Node,
    edges: list[Edge],
    seeds: Sequence[Tensor | None],
    halves: Sequence[tuple[list[Tensor], list[Tensor]]],
    states: Sequence[TokenState],
) -> bool:
    """Return True if an argument's gradient depends on other tokens than the argument itself, at some position.

    The gradient of a sum depends on no token, that of a product on what the argument is multiplied with.
    """
    results = [place for place, seed in enumerate(seeds) if seed is not None]
    if not results:
        return False
    gradients = torch.autograd.grad(
        [GradientEdge(node, place) for place in results],
        [GradientEdge(*edge) for edge in edges],
        [seeds[place] for place in results],
        create_graph=True,
        allow_unused=True,
    )
    moved = [(edge, x) for edge, x in zip(edges, gradients, strict=True) if x is not None and x.requires_grad]
    if any(_is_of_one_token(edge, x, states) for edge, x in moved):  # such as patches times the class token
        return False
    try:
        return any(_meets_others(edge, gradient, halves, states) for edge, gradient in moved)
    except (RuntimeError, NotImplementedError):  # a kernel of several tensors whose gradient has no gradient
        return True


def _is_of_one_token(edge: Edge, like: Tensor, states: Sequence[TokenState]) -> bool:
    """Return True if all numbers of an argument are made of one and the same token."""
    seed = torch.randn(like.shape, generator=torch.Generator().manual_seed(3)).to(like)
    tensors = [in_graph(state.tensor) for state in states]
    found = torch.autograd.grad(GradientEdge(*edge), tensors, seed, retain_graph=True, allow_unused=True)
    reached = torch.cat(_tokens_reached(states, found))
    return len(reached[reached >= 0].unique()) == 1


def _meets_others(
    edge: Edge,
    gradient: Tensor,
    halves: Sequence[tuple[list[Tensor], list[Tensor]]],
    states: Sequence[TokenState],
) -> bool:
    """Return True if some number is made of one half of the tokens, and its gradient depends on the other half."""
    for halved in halves:
        here = [_moves(GradientEdge(*edge), gradient, moved, states) for moved in halved]
        there = [_moves(gradient, gradient, moved, states) for moved in halved]
        first, second = here
        if bool((first & ~second & there[1]).any()) or bool((second & ~first & there[0]).any()):
            return True
    return False


def _moves(
    x: Tensor | GradientEdge, like: Tensor, directions: Sequence[Tensor], states: Sequence[TokenState]
) -> Tensor:
    """Return which numbers of a tensor change where the states move in some directions, to first order.

    The gradient at the states is linear in the gradient that is given. Differentiated by it, it is the change.
    """
    given = torch.zeros_like(like).requires_grad_()
    tensors = [in_graph(state.tensor) for state in states]
    found = torch.autograd.grad(x, tensors, given, create_graph=True, allow_unused=True)
    total = sum((g * way).sum() for g, way in zip(found, directions, strict=True) if g is not None)
    if not isinstance(total, Tensor) or not total.requires_grad:
        return torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    (changed,) = torch.autograd.grad(total, given, allow_unused=True)
    changed = torch.zeros_like(like) if changed is None else changed.nan_to_num()
    return changed.abs() > NOISE * changed.abs().amax()
