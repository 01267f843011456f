"""Places in autograd's graph: where a tensor stands, and what a walk back from there meets."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from vitrail.capture.structure.token_codes import State
from vitrail.capture.torch_private import current_transform

Node = object
"""A place in autograd's graph."""
KEEPS_VALUES = (
    "View", "UnsafeView", "Reshape", "Transpose", "Permute", "Clone", "ToCopy", "Squeeze", "Unsqueeze", "Alias",
    "TBack", "Slice", "Select",
)  # fmt: skip
"""How the names of graph nodes begin that hand values on as they are."""
BY_ENTRY = (*KEEPS_VALUES, "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Exp", "Tanh", "Sigmoid", "Erf", "Relu", "Clamp")
"""The same of nodes that compute every number of a state from this number alone."""
TABLE = "EmbeddingBackward"
"""How the names of graph nodes begin that look up vectors."""


def node_of(x: Tensor | State | None) -> Node | None:
    """Return the node of a tensor in the graph; None if it has no gradient."""
    if isinstance(x, State):
        return x.node
    if x is None or not x.requires_grad:
        return None
    if x.grad_fn is not None:
        return x.grad_fn
    if torch.is_inference_mode_enabled():  # nothing that is made here is in a graph
        return None
    try:
        return torch.autograd.graph.get_gradient_edge(x).node
    except (AssertionError, RuntimeError):  # inside an autograd function of the model's own there is no graph
        return None


def state_of(x: Tensor) -> State:
    """Return a tensor as it stands in the graph now."""
    node = node_of(x)
    return State(x, None if node is None else GradientEdge(node, x.output_nr))  # pyright: ignore[reportArgumentType]


def start_graph(module: nn.Module, out: Tensor) -> bool:
    """Let the graph begin at what frozen weights made of numbers without one; whether the result has a graph."""
    own = any(x is not None for x in module._parameters.values())
    begins = not out.requires_grad and out.is_leaf and (own or isinstance(module, nn.Embedding))
    if begins and current_transform() is None:  # inside of a transform no graph can begin
        out.requires_grad_()
    return out.requires_grad


def _nodes_behind(start: list[Node | None], stop: Collection[Node] = ()) -> Iterator[Any]:
    """The nodes that a walk back through the graph meets, each once; it does not go on behind those to stop at."""
    waiting, known = [node for node in start if node is not None], set()
    while waiting:
        node: Any = waiting.pop()
        if node in known:
            continue
        known.add(node)
        yield node
        if node not in stop:
            waiting += [before for before, _ in node.next_functions if before is not None]


def from_data(x: Tensor | None, cuts: Collection[Node] = ()) -> bool:
    """Return True if a tensor depends on the input, and not on weights alone.

    Args:
        cuts: nodes of tensors that say nothing of it, such as what attention gave.
    """
    return any(
        node.name().startswith(TABLE) or not isinstance(getattr(node, "variable", None), (nn.Parameter, type(None)))
        for node in _nodes_behind([node_of(x)], cuts)
        if node not in cuts
    )


def reached(start: list[Node | None], targets: set[Any]) -> set[Node]:
    """Those of the targets that a walk back through the graph meets; it does not go on behind a target."""
    return {node for node in _nodes_behind(start, targets) if node in targets}


def is_by_entry(start: Node | None, state: Node) -> bool:
    """Return True if each number of a tensor is made of the same number of a state alone, as by an activation."""
    between = (node.name() for node in _nodes_behind([start], {state}) if node is not state)
    return all(name.partition("Backward")[0] in BY_ENTRY for name in between)


def met_beside(start: Node | None, by: Node | None, data: set[Node]) -> bool:
    """Return True if a walk back through the graph meets data that it does not come to by way of a node."""
    met = (node for node in _nodes_behind([start], {by}) if node is not by)
    return any(node in data or node.name().startswith(TABLE) for node in met)


def is_made_of(start: list[Node | None], target: Node | None) -> bool:
    """Return True if a walk back through the graph, which begins at the first of these, meets a node."""
    return target is not None and any(node is target for node in _nodes_behind(start[::-1], {target}))


def base_of(node: Node | None) -> Node | None:
    """The node whose values another one hands on as they are."""
    while node is not None and node.name().startswith(KEEPS_VALUES):  # pyright: ignore[reportAttributeAccessIssue]
        before = node.next_functions[0][0]  # pyright: ignore[reportAttributeAccessIssue]
        if before is None:
            break
        node = before
    return node
