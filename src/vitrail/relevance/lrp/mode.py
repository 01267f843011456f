"""The context in which an unmodified model propagates relevance instead of gradients.

Every torch function that reads something the explanation depends on is looked up by its kind in the rule set, and the
rule replaces its backward function. The values are the model's own. Nothing remains after the context.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.hooks import RemovableHandle

from vitrail.capture.recording.hooks import Capture, replaced_stream
from vitrail.capture.seams.call import positional, tensors_in
from vitrail.capture.seams.intercept import on_top_of
from vitrail.capture.shadow import hooks, once
from vitrail.capture.torch_private import saving_hooks, without_functions
from vitrail.relevance.lrp.kinds import (
    ADDITIONS,
    IN_PLACE,
    KINDS,
    MODULES,
    MULTIPLICATIONS,
    QUERIES,
    REVERSED_SUBTRACTIONS,
    ROUTING,
    STATEMENTS,
    SUBTRACTIONS,
    WRITTEN_OUT,
    kind_of,
)
from vitrail.relevance.lrp.operation import (
    ENTRYWISE,
    Flow,
    KnownTensors,
    Operation,
    Rule,
    at_block_entry,
    gradient,
    is_overridden,
    refused,
    running_module,
)
from vitrail.relevance.lrp.quotients import NOTED, Quotients
from vitrail.relevance.runner import forwarding


@dataclass(frozen=True)
class RuleSet:
    """A table: what kind of operation propagates relevance by which rule.

    Args:
        rules: by kind of operation. A kind that is missing stops the pass with an error.
        otherwise: the rule of functions of no known kind; None stops the pass.
        fork: what becomes of the residual stream where a sub-layer and a skip connection both read it.
        notes: by kind of operation, what is told of each operation and its result.
    """

    name: str
    rules: Mapping[str, Rule]
    otherwise: Rule | None = None
    fork: Callable[[Tensor], Tensor] | None = None
    notes: Mapping[str, Callable[[Operation, Any], None]] = field(default_factory=dict)


def plain_functions(table: RuleSet) -> tuple[frozenset[Callable[..., Any]], frozenset[Callable[..., Any]]]:
    """The functions that a rule set leaves to the chain rule: always, and where one argument is explained at most.

    Most functions of a pass are such. They run at once, and their results are marked. Of the latter, which work entry
    by entry, it is kept what their result is a function of.
    """
    left = {kind for kind, rule in table.rules.items() if rule is gradient}
    known = left - ENTRYWISE - {"product", "write"} - table.notes.keys()
    always = {func for func, kind in KINDS.items() if kind in known} | (ROUTING if "route" in left else set())
    always -= set() if "select" in left else {Tensor.__getitem__}
    alone = MULTIPLICATIONS if "scale" in left else set()
    alone = alone | ADDITIONS if "shift" in left else alone
    changing = IN_PLACE.keys() | STATEMENTS | {f for f, kind in KINDS.items() if kind == "write"}
    return frozenset(always - changing), frozenset(alone - changing)


class _Propagate(TorchFunctionMode):
    """Look every function up in the rule set."""

    def __init__(self, table: RuleSet, capture: Capture, flow: Flow | None, names: Mapping[int, str]) -> None:
        super().__init__()
        self.table, self.capture, self.flow = table, capture, flow
        self.where = partial(running_module, names)
        self.known = KnownTensors(capture, self.where, lenient=table.otherwise is not None)
        self.plain, self.entrywise = plain_functions(table)
        self.sums_are_plain = table.fork is None and all(
            table.rules.get(kind) is gradient for kind in ("residual", "sum")
        )
        self.residuals: Counter[int | None] = Counter()
        self.quotients = Quotients()
        self.paused = False

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run one function by its rule."""
        kwargs = kwargs or {}
        if self.capture.journal is not None:
            with without_functions():
                self.capture.journal.note(func, args, kwargs)
        if self.paused or func in QUERIES:
            return func(*args, **kwargs)
        if self.capture.pass_options.last_block and not self.capture.roots:  # in blocks below the last
            return self.known.constant(func(*args, **kwargs))  # such as a bias of attention that all blocks share
        if not self.known.stale and (func in self.plain or func in self.entrywise) and _says_how(kwargs):
            active = self._read_by(args)
            if active is not None and (func in self.plain or self._is_plain(func, active)):
                return self._at_once(func, func(*args, **kwargs), active)
        return self._by_rule(func, args, kwargs)

    def _read_by(self, args: tuple) -> list[Tensor] | None:
        """The arguments that depend on what is explained; None where that needs a closer look."""
        found: list[Tensor] = []
        for x in args:
            if not isinstance(x, Tensor):
                if isinstance(x, (list, dict)) or (isinstance(x, tuple) and next(tensors_in(x), None) is not None):
                    return None
            elif x in self.known.depends:
                found.append(x)
            elif x.requires_grad and x not in self.known.constants and (not x.is_leaf or self.known.is_root(x)):
                return None
        return [*found, found[0]] if len(found) == 1 and len(args) > 1 and args[0] is args[1] else found

    def _is_plain(self, func: Callable[..., Any], active: list[Tensor]) -> bool:
        """Return True if a function that works entry by entry is left to the chain rule with these operands."""
        if len(active) == 1 and func in ADDITIONS:
            return "shift" not in self.table.notes
        return len(active) < 2 or self._adds_others(func, active)

    def _adds_others(self, func: Callable[..., Any], active: list[Tensor]) -> bool:
        """Return True if a function adds tensors, none a function of another alone, and no rule is for sums."""
        return func in ADDITIONS and self.sums_are_plain and self.known.source(active) is None

    def _at_once(self, func: Callable[..., Any], out: Any, active: list[Tensor]) -> Any:  # noqa: ANN401
        """The result of a function that is left to the chain rule."""
        if not active:
            return self.known.constant(out)
        if func in self.entrywise and len(active) == 1 and isinstance(out, Tensor):
            if func in MULTIPLICATIONS:
                self.known.scaled[out] = active[0]
            if out.shape == active[0].shape:
                self.known.sources[out] = self.known.sources.get(active[0], active[0])
        return self.known.mark(out)

    def _by_rule(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:  # noqa: ANN401
        """Run a function that may have a rule of its own."""
        args, kwargs = positional(func, args, kwargs)
        if func in WRITTEN_OUT:
            before = self.known.tokens_first
            self.known.tokens_first = before or func is F.multi_head_attention_forward
            try:
                with self:  # the mode is off while a torch function runs
                    return WRITTEN_OUT[func](*args, **kwargs)
            finally:
                self.known.tokens_first = before
        active = self.known.active_among(args, kwargs)
        if not active:
            out = self.known.constant(func(*args, **kwargs))
            if KINDS.get(func) == "write":  # what constants are written into is one as well
                self.known.constant(args[0])
            return out
        if kwargs.get("inplace"):
            kwargs = {**kwargs, "inplace": False}
            self.known.outdate(args[0])
        function = IN_PLACE.get(func, func)
        changed = args[0] if function is not func else None
        kind = self._kind(function, args, active)
        if func in STATEMENTS and not is_overridden(args[0]) and self.table.rules.get(kind) is gradient:
            return self.follow("write", func, args, kwargs, active)  # the chain rule knows tensors that change
        summed = function in ADDITIONS or function in SUBTRACTIONS or function in REVERSED_SUBTRACTIONS
        follow = self._sum if summed else partial(self.follow, kind)
        out = follow(function, args, kwargs, active)
        if changed is not None:
            self.known.outdate(changed)
        return out

    def _kind(self, func: Callable[..., Any], args: tuple, active: Sequence[Tensor]) -> str:
        """Return the kind of operation that a function is here; inside a block, by the shape of its residual stream."""
        block = self.capture.block
        stream = None if block is None else self.capture.blocks[block].states["entering"].shape
        return kind_of(func, args, active, stream)

    def _sum(self, func: Callable[..., Any], args: tuple, kwargs: dict, active: tuple[Tensor, ...]) -> Any:  # noqa: ANN401
        """A sum or a difference by its rule: `x + alpha y` is the sum of x and of y scaled first."""
        factor = kwargs.get("alpha", 1) * (1 if func in ADDITIONS else -1)
        if factor == 1:
            return self.follow(self._kind(func, args, active), func, args, kwargs, active)
        summands = list(args[:2])
        place = 0 if func in REVERSED_SUBTRACTIONS else 1
        summands[place] = self._scaled(summands[place], factor)

        def add(a: Tensor | float | int, b: Tensor | float | int) -> Tensor:
            return on_top_of(torch.add(a, b), func(*args, **kwargs))  # scaling first may round in another way

        active = self.known.active_among(summands)
        if not active:  # scaled by what relevance does not pass through
            return self.known.constant(func(*args, **kwargs))
        return self.follow(self._kind(torch.add, tuple(summands), active), add, tuple(summands), {}, active)

    def _scaled(self, x: Any, factor: int | float) -> Any:  # noqa: ANN401
        """A summand times a number, as old as the summand."""
        active = self.known.active_among(x)
        if not active:
            return self.known.constant(x * factor)
        new = self.follow("scale", torch.mul, (x, factor), {}, active)
        if x in self.known.depends and new in self.known.depends:
            self.known.depends[new] = self.known.depends.get(x, -1)
        return new

    def follow(self, kind: str, func: Callable[..., Any], args: tuple, kwargs: dict, active: tuple[Tensor, ...]) -> Any:  # noqa: ANN401
        """The result of an operation by its rule, known to depend on what is explained."""
        # A region that is run again in the backward pass would be run without rules.
        self.capture.checkpointed |= saving_hooks() != self.capture.outside
        if kind == "residual":
            kind, active = self.known.residual(active)
        function = _KeepingResult(func)
        operation = self.known.operation(kind, function, args, kwargs, active, self.flow)
        rule = self.table.rules.get(kind)
        if rule is None and kind == "unknown":
            rule = self.table.otherwise or self._ordinary(operation)
        if rule is None:
            return self._refuse(func, operation, self._without_rule(func, operation))
        if kind == "over_constant" and (why := self.quotients.why_refused(*args[:2])) is not None:
            return self._refuse(func, operation, f"the module {operation.where or 'at the top'!r} {why}")
        out = self.known.mark(rule(operation))
        if isinstance(out, Tensor) and isinstance(function.result, Tensor):
            self.capture.same(function.result, out)
        function.result, function.open = None, False
        if kind in self.table.notes:
            self.table.notes[kind](operation, out)
        self.known.remember(kind, operation, out)
        if kind in NOTED:
            self.quotients.note(operation, func, out)
        return self._forked(kind, operation.block, out)

    def _refuse(self, func: Callable[..., Any], operation: Operation, why: str) -> Any:  # noqa: ANN401
        """The result of a function through which relevance cannot pass.

        Only relevance that arrives is an error: a loss beside the logits gives none back.
        """
        return self.known.mark(refused(func(*operation.args, **operation.kwargs), why))

    def _without_rule(self, func: Callable[..., Any], operation: Operation) -> str:
        name = resolve_name(func) or getattr(func, "__name__", "an operation")
        return (
            f"the rules {self.table.name!r} do not say how relevance passes through {name} "
            f"({operation.name!r}) in the module {operation.where or 'at the top'!r}. Add a rule for it: "
            "name its kind in vitrail.relevance.lrp.kinds.KINDS and give the kind a rule in the rule set."
        )

    def fork(self, x: Tensor) -> Tensor:
        """A tensor that is read twice: by a sub-layer and by the skip connection around it."""
        return self.known.mark(self.table.fork(x)) if self.table.fork is not None and self.known.active_among(x) else x

    def entry(self, x: Tensor) -> Tensor:
        """The stream that enters a block."""
        if self.flow is not None and self.known.active_among(x):
            return self.known.mark(at_block_entry(x, self.flow))
        return self.fork(x)

    def _forked(self, kind: str, block: int | None, out: Any) -> Any:  # noqa: ANN401
        """The stream between the two sub-layers of a block forks: at the sum, or at the norm that follows it."""
        if block is None or kind not in {"residual", "layer_norm", "rms_norm", "rms_norm_module"}:
            return out
        self.residuals[block] += kind == "residual"
        at = "residual" if self.capture.body.blocks[block].attention_norm is not None else "norm"
        if self.residuals[block] == 1 and kind.endswith(at):
            self.residuals[block] += at == "norm"  # the sum is behind us
            return self.fork(out)
        return out

    def _ordinary(self, operation: Operation) -> Rule | None:
        """Questions about a tensor, which give no tensor that depends on it, need no rule."""
        out = operation.run()
        return None if any(x.requires_grad for x in tensors_in(out)) else lambda _: out


def _says_how(kwargs: dict[str, Any]) -> bool:
    """Return True if keywords only say how a function works, and hold no operands."""
    return not kwargs.get("inplace") and not any(isinstance(x, (Tensor, tuple, list, dict)) for x in kwargs.values())


class _KeepingResult:
    """A function that keeps its last result while it is open: a rule may keep the operation, and so the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.result, self.open = function, None, True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        out = self.function(*args, **kwargs)
        self.result = out if self.open else None
        return out


# torch.compile must not capture the mode: where a compiled function runs as compiled code, break its graph instead.
_Propagate.__torch_function__._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]


@contextmanager
def propagating(table: RuleSet, model: nn.Module, capture: Capture, *, flow: Flow | None = None) -> Iterator[None]:
    """Let the model that runs inside the block propagate relevance by these rules when it is differentiated.

    Args:
        flow: says of each backward pass whether it follows the rules or the chain rule, so that methods of both kinds
            share one forward pass. Only rules that use `Operation.passing`, `shared` and `constant` can be switched.
    """
    names = once(model, "names", lambda: {id(module): name for name, module in model.named_modules()})
    mode = _Propagate(table, capture, flow, names)
    handles: list[RemovableHandle] = []

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        return replaced_stream(args, kwargs, mode.entry)

    def whole_modules() -> list[tuple[nn.Module, str]]:
        kinds = [(one, next((kind for kind, fits in MODULES.items() if fits(one)), None)) for one in model.modules()]
        return [(one, kind) for one, kind in kinds if kind is not None]

    with ExitStack() as stack:
        for module, kind in once(model, "kinds", whole_modules):
            if kind in table.rules:
                stack.enter_context(forwarding(module, partial(_whole, mode, kind, module.forward)))
        with hooks(handles), mode:
            for block in capture.body.blocks:
                handles.append(block.module.register_forward_pre_hook(enter, with_kwargs=True))
            yield
        mode.quotients = Quotients()  # lets go of the graph


def _whole(mode: _Propagate, kind: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """A module's forward as one operation."""
    active = mode.known.active_among(args, kwargs)
    if not active:
        return forward(*args, **kwargs)
    mode.paused = True
    try:
        return mode.follow(kind, forward, args, kwargs, active)
    finally:
        mode.paused = False
