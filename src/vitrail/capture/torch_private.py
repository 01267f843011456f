"""Every private name of torch that the core uses, each checked when this module is imported.

docs/PRIVATE_INTERFACES.md lists them with the reason. Where a name is missing, the import fails and says what the name
is needed for.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._python_dispatch
from torch import Tensor, nn

from vitrail.errors import MissingExtraError

UPGRADE = "This torch is too old, or newer than this vitrail. Upgrade both: pip install --upgrade torch vitrail."


def _private(path: str, purpose: str) -> Any:  # noqa: ANN401
    """The object of this dotted name below torch, or an error that says what it is needed for."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise MissingExtraError(
                f"torch {torch.__version__} has no torch.{path}, which vitrail needs to {purpose}. {UPGRADE}"
            )
    return found


without_functions: Callable[[], AbstractContextManager[object]] = _private(
    "_C.DisableTorchFunction", "run its own sums without interception by function modes"
)
"""A context in which no torch function is handed to modes or tensor classes."""
with_functions: Callable[[], AbstractContextManager[object]] = _private(
    "_C._EnableTorchFunction", "call weights of tensor classes where modes are off"
)
"""A context in which torch functions are handed to modes and tensor classes again."""
saving_hooks: Callable[[], object] = partial(
    _private("_C._autograd._top_saved_tensors_default_hooks", "see checkpointed regions of a model"),
    True,  # noqa: FBT003  (torch takes it by position)
)
"""Gives the hooks that decide what operations save for the backward pass; None outside of checkpointed regions."""
set_gradients: Callable[..., None] = _private(
    "_C._set_grad_enabled", "leave its own switches of autograd out of what a model did"
)
"""Switches autograd on and off; what `torch.set_grad_enabled` calls."""
current_transform: Callable[[], int | None] = _private(
    "_C._functorch.maybe_current_level", "refuse calls inside of transforms of torch.func"
)
"""Gives the level of the transform of torch.func (vmap, grad, jvp) that the code runs in; None outside of all."""
fused_attention: Callable[..., Any] = _private(
    "_C._nn.scaled_dot_product_attention", "see attention where F.scaled_dot_product_attention was wrapped"
)
"""`F.scaled_dot_product_attention` as torch has it, whatever stands under that name now."""
DispatchMode: Any = _private(
    "utils._python_dispatch.TorchDispatchMode", "refuse writes into the user's model before they happen"
)
"""A mode that sees each operation before it runs, with the arguments that it writes into."""
NEEDED_OF_MODULES = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_forward_pre_hooks"}
_guards: Any = _private("_guards", "run compiled functions as they were written")
SAVED_LOGSUMEXP = ("_saved_logsumexp", "_saved_log_sumexp")
"""Under which names the graph holds what fused attention kept for its backward pass; it may be under none."""


def uncompiled() -> AbstractContextManager[None]:
    """Let functions that torch.compile made run as they were written, in this thread only.

    A shadow has no compiled modules, but a model's code may call compiled functions that belong to no module. Compiled
    code would follow hooks and modes into its graph. torch's own stance cannot be used: it is that of all threads.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # if it is not imported, nothing is compiled
    if dynamo is None:
        return nullcontext()
    as_written = getattr(dynamo, "_use_eager_on_nested_compile", None)
    if as_written is not None:
        return as_written()
    # Before torch 2.15, compiled functions run as written where a kernel of a fake tensor is at work: they ask the
    # tracing context of their own thread for this, before they look at anything else.
    return _guards.tracing(_guards.TracingContext(SimpleNamespace(in_kernel_invocation=True, shape_env=None)))


def writes_to(x: Tensor) -> int:
    """Return the number of times a tensor was written to in place; 0 for one that was made in inference mode."""
    return 0 if x.is_inference() else x._version


def writes_to_all(tensors: Sequence[Tensor]) -> int:
    """Return the number of in-place writes to tensors, together; those made in inference mode do not count."""
    try:
        return sum([x._version for x in tensors])
    except RuntimeError:
        return sum([x._version for x in tensors if not x.is_inference()])


def check_interfaces() -> None:
    """Raise if torch no longer works as the copies of its functions and modules assume."""
    function = F.multi_head_attention_forward
    if "has_torch_function" not in getattr(function, "__code__").co_names:  # noqa: B009  (pyright: a callable)
        raise MissingExtraError(
            f"F.multi_head_attention_forward of torch {torch.__version__} does not call has_torch_function, by which "
            f"vitrail intercepts the attention of nn.MultiheadAttention. {UPGRADE}"
        )
    missing = NEEDED_OF_MODULES - vars(nn.Module()).keys()
    for name, kind in {"_version": Tensor, "_base": Tensor, "_cdata": torch.UntypedStorage}.items():
        if not hasattr(kind, name):
            raise MissingExtraError(
                f"{kind.__name__} of torch {torch.__version__} has no {name}, by which vitrail sees writes in place "
                f"and shared memory. {UPGRADE}"
            )
    if missing:
        raise MissingExtraError(
            f"nn.Module of torch {torch.__version__} has no {', '.join(sorted(missing))}, which vitrail copies to "
            f"explain a shadow of the model. {UPGRADE}"
        )


check_interfaces()
