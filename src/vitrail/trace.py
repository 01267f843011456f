"""One forward pass with the ears open: attention calls and stream states, still attached to the graph."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.anatomy import Body
from vitrail.errors import SeamError
from vitrail.restore import hooks
from vitrail.seams import AttentionCall, attention_calls

STATES = ("entering", "leaving", "attention_normed", "ffn_entering", "ffn_normed", "ffn_added")


@dataclass
class Heard:
    """What was heard of one block."""

    calls: list[AttentionCall] = field(default_factory=list)
    states: dict[str, Tensor] = field(default_factory=dict)


class Trace:
    """Everything heard in one forward pass, filed by block; the pooling attention comes last."""

    def __init__(self, body: Body, *, keep: frozenset[str], cut: bool) -> None:
        self.body, self.keep, self.cut = body, keep, cut
        self.blocks = [Heard() for _ in body.blocks]
        self.pool = Heard()
        self.loose = Heard()
        self.roots: list[Tensor] = []
        self.here: Heard = self.loose
        self.running: list[str] = []  # the modules being called, outermost first
        self.answer: object = None  # what the module gave whose readout the anatomy knows
        self.thread = threading.get_ident()

    def hear(self, call: AttentionCall) -> None:
        """File a call under the block that runs, with the module that made it."""
        self.here.calls.append(replace(call, owner=self.running[-1] if self.running else ""))

    @property
    def layers(self) -> list[Heard]:
        """One entry for each attention layer, first to last."""
        found = self.blocks or [Heard([call]) for call in self.loose.calls]
        return [*found, self.pool] if self.body.pool is not None else found

    def answered(self, logits: Tensor) -> bool:
        """Whether these logits are what the anatomy's head gave, so that its readout is the prediction's."""
        if self.body.head is None:
            return True
        found = getattr(self.answer, "logits", self.answer)
        return any(x is logits for x in (found if isinstance(found, (tuple, list)) else [found]))

    def check(self, model: nn.Module) -> None:
        """Raise unless exactly one attention call was heard in each layer."""
        heard = len(self.loose.calls) + sum(len(x.calls) for x in [*self.blocks, self.pool])
        if heard == 0:
            raise SeamError(
                f"no attention call was heard in {type(model).__name__}. Vitrail hears scaled_dot_product_attention, "
                "nn.MultiheadAttention, and a softmax over the last axis followed by a product with the values. Load "
                "a Hugging Face model with attn_implementation='sdpa' or 'eager' (flash kernels cannot be heard)."
            )
        counts = [len(x.calls) for x in self.layers]
        if any(count != 1 for count in counts):
            raise SeamError(
                f"each block of {type(model).__name__} should attend once, but the attention calls heard per block are "
                f"{counts}, and {len(self.loose.calls)} outside of them. Name the blocks that hold one self-attention "
                "each: vitrail.Anatomy(blocks=...)."
            )


def stream_of(args: tuple, kwargs: dict) -> Tensor:
    """The residual stream among a block's arguments: the first tensor."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            return x
    raise SeamError("a block was called without any tensor, so the residual stream cannot be followed.")


def _replaced(args: tuple, kwargs: dict, old: Tensor, new: Tensor) -> tuple[tuple, dict]:
    return tuple(new if x is old else x for x in args), {n: new if x is old else x for n, x in kwargs.items()}


def _first(out: Any) -> Tensor:  # noqa: ANN401
    return out[0] if isinstance(out, (tuple, list)) else out


def _ours(trace: Trace, hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, deaf to other threads: hooks belong to the module, but a pass to one thread."""

    def heard(*given: Any) -> Any:  # noqa: ANN401
        return hook(*given) if threading.get_ident() == trace.thread else None

    return heard


def _before(trace: Trace, module: nn.Module, hook: Callable[..., Any]) -> RemovableHandle:
    return module.register_forward_pre_hook(_ours(trace, hook), with_kwargs=True)


def _after(trace: Trace, module: nn.Module, hook: Callable[..., Any]) -> RemovableHandle:
    return module.register_forward_hook(_ours(trace, hook))


@contextmanager
def listening(model: nn.Module, trace: Trace) -> Iterator[None]:
    """File what is heard while the model runs inside the block."""
    handles = [h for name, module in model.named_modules() for h in _name_hooks(trace, name, module)]
    handles += [h for i in range(len(trace.blocks)) for h in _block_hooks(trace, i)]
    if trace.body.pool is not None:
        handles += _place_hooks(trace, trace.body.pool, trace.pool)
    if trace.body.head is not None:
        handles.append(_after(trace, trace.body.head, lambda module, args, out: setattr(trace, "answer", out)))
    if trace.cut and not trace.blocks:
        handles += _embedding_hooks(trace, model)
    with hooks(handles), attention_calls(trace.hear):
        yield


def _name_hooks(trace: Trace, name: str, module: nn.Module) -> list[RemovableHandle]:
    """Keep the name of a module on the stack while it runs."""

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
        trace.running.append(name)

    def leave(module: nn.Module, args: tuple, out: object) -> None:
        trace.running.pop()

    return [_before(trace, module, enter), _after(trace, module, leave)]


def _place_hooks(trace: Trace, module: nn.Module, heard: Heard) -> list[RemovableHandle]:
    """File calls under this module while it runs."""

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
        trace.here = heard

    def leave(module: nn.Module, args: tuple, out: object) -> None:
        trace.here = trace.loose

    return [_before(trace, module, enter), _after(trace, module, leave)]


def _block_hooks(trace: Trace, index: int) -> list[RemovableHandle]:
    block, heard = trace.body.blocks[index], trace.blocks[index]

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        stream = stream_of(args, kwargs)
        changed = None
        if index == 0 and trace.cut:
            root = stream.detach().requires_grad_()
            changed = _replaced(args, kwargs, stream, root)
            trace.roots.append(root)
            stream = root
        heard.states["entering"] = stream
        return changed

    def leave(module: nn.Module, args: tuple, out: object) -> None:
        heard.states["leaving"] = _first(out)

    handles = [
        _before(trace, block.module, enter),
        *_place_hooks(trace, block.module, heard),
        _after(trace, block.module, leave),
    ]
    return handles + _state_hooks(trace, index)


def _state_hooks(trace: Trace, index: int) -> list[RemovableHandle]:
    """Hooks for the states inside a block, only for those that are asked for and exist."""
    block, states = trace.body.blocks[index], trace.blocks[index].states

    def going_in(*names: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            states.update(dict.fromkeys(names, stream_of(args, kwargs).detach()))

        return hook

    def coming_out(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, out: object) -> None:
            states[name] = _first(out).detach()

        return hook

    ears: list[tuple[nn.Module | None, str, Callable[..., None], tuple[str, ...]]] = [
        (block.attention_norm, "out", coming_out("attention_normed"), ("attention_normed",)),
        (block.ffn_norm, "in", going_in("ffn_entering"), ("ffn_entering",)),
        (block.ffn_norm, "out", coming_out("ffn_normed"), ("ffn_normed",)),
        (block.ffn_output, "out", coming_out("ffn_added"), ("ffn_added",)),
    ]
    if block.ffn_norm is None:  # post-norm: what enters the sub-layer is what it reads
        ears.append((block.ffn_input, "in", going_in("ffn_entering", "ffn_normed"), ("ffn_entering", "ffn_normed")))
    return [
        _after(trace, module, ear) if side == "out" else _before(trace, module, ear)
        for module, side, ear, names in ears
        if module is not None and trace.keep & set(names)
    ]


def _embedding_hooks(trace: Trace, model: nn.Module) -> list[RemovableHandle]:
    """Where no block is known, the gradient is followed down to the embeddings."""

    def hook(module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        root = out.detach().requires_grad_()
        trace.roots.append(root)
        return root

    return [_after(trace, m, hook) for m in model.modules() if isinstance(m, nn.Embedding)]
