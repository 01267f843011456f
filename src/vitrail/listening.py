"""The hooks of one forward pass: where in the model attention calls and stream states come from."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.errors import SeamError
from vitrail.restore import hooks
from vitrail.seams import attention_calls
from vitrail.trace import Heard, Trace


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
    handles: list[RemovableHandle] = []
    with hooks(handles):
        for name, module in model.named_modules():
            handles += _name_hooks(trace, name, module)
        for index in range(len(trace.blocks)):
            handles += _block_hooks(trace, index)
        if trace.body.pool is not None:
            handles += _place_hooks(trace, trace.body.pool, trace.pool)
        if trace.body.head is not None:
            handles.append(_after(trace, trace.body.head, lambda module, args, out: setattr(trace, "answer", out)))
        if trace.cut and not trace.blocks:
            handles += _embedding_hooks(trace, model)
        with attention_calls(trace.hear):
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
