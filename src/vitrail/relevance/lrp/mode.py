"""The context in which an unmodified model propagates relevance instead of gradients.

Every torch function that reads something the explanation depends on is looked up by its kind in the rule set, and the
rule replaces its backward function. The values are the model's own. Nothing remains after the context.
"""

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from vitrail.capture.graph_nodes import node_of, reached
from vitrail.capture.hooks import Capture, replaced_stream
from vitrail.capture.seams.call import positional, tensors_in
from vitrail.capture.seams.intercept import on_top_of
from vitrail.capture.shadow import hooks, once
from vitrail.capture.torch_private import saving_hooks
from vitrail.errors import RuleError
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
from vitrail.relevance.lrp.operation import Flow, Operation, Rule, at_block_entry, gradient, is_overridden, refused
from vitrail.relevance.lrp.quotients import NOTED, Quotients
from vitrail.relevance.runner import forwarding

RUNNING = ("forward", "_call_impl")
"""The functions that stand on the call stack while a module runs, whatever it calls its own."""
ENTRYWISE = frozenset({"activation", "scale", "shift", "sum", "gate"})
"""Operations that work entry by entry, where their operands have one shape."""


@dataclass(frozen=True)
class RuleSet:
    """A table: what kind of operation propagates relevance by which rule.

    Args:
        rules: by kind of operation. A kind that is missing stops the pass with an error.
        otherwise: the rule of functions of no known kind; None stops the pass.
        fork: what becomes of the residual stream where a sub-layer and a skip connection both read it.
    """

    name: str
    rules: Mapping[str, Rule]
    otherwise: Rule | None = None
    fork: Callable[[Tensor], Tensor] | None = None


class Marks:
    """A number for each tensor that was marked, as long as it lives; asked about thousands of times in a pass."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def __setitem__(self, x: Tensor, value: int) -> None:
        self._marks[id(x)] = (weakref.ref(x), value)

    def __contains__(self, x: Tensor) -> bool:
        found = self._marks.get(id(x))
        return found is not None and found[0]() is x  # another tensor may have taken the place of one that is gone

    def get(self, x: Tensor, otherwise: int) -> int:
        """The number of a tensor, or this one."""
        return self._marks[id(x)][1] if x in self else otherwise


def plain_functions(table: RuleSet) -> tuple[frozenset[Callable[..., Any]], frozenset[Callable[..., Any]]]:
    """The functions that a rule set leaves to the chain rule: always, and where one argument is explained at most.

    Most functions of a pass are such. They run at once, and their results are marked. Of the latter, which work entry
    by entry, it is kept what their result is a function of.
    """
    left = {kind for kind, rule in table.rules.items() if rule is gradient}
    known = left - ENTRYWISE - {"product", "write"}
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
        self.table, self.capture, self.flow, self.names = table, capture, flow, names
        self.depends, self.constants = Marks(), Marks()
        self.readers: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.activated: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.sources: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.scaled: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.stale: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.plain, self.entrywise = plain_functions(table)
        self.sums_are_plain = table.fork is None and all(
            table.rules.get(kind) is gradient for kind in ("residual", "sum")
        )
        self.residuals: Counter[int | None] = Counter()
        self.quotients = Quotients()
        self.paused = False
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:  # noqa: ANN401
        """Run one function by its rule."""
        kwargs = kwargs or {}
        if self.paused or func in QUERIES:
            return func(*args, **kwargs)
        if self.capture.pass_options.last_block and not self.capture.roots:  # in blocks below the last
            return self._constant(func(*args, **kwargs))  # such as a bias of attention that all blocks share
        if not self.stale and (func in self.plain or func in self.entrywise) and _says_how(kwargs):
            active = self._read_by(args)
            if active is not None and (func in self.plain or len(active) < 2 or self._adds_others(func, active)):
                return self._at_once(func, func(*args, **kwargs), active)
        return self._by_rule(func, args, kwargs)

    def _read_by(self, args: tuple) -> list[Tensor] | None:
        """The arguments that depend on what is explained; None where that needs a closer look."""
        found: list[Tensor] = []
        for x in args:
            if not isinstance(x, Tensor):
                if isinstance(x, (list, dict)) or (isinstance(x, tuple) and next(tensors_in(x), None) is not None):
                    return None
            elif x in self.depends:
                found.append(x)
            elif x.requires_grad and x not in self.constants and (not x.is_leaf or self._is_root(x)):
                return None
        return [*found, found[0]] if len(found) == 1 and len(args) > 1 and args[0] is args[1] else found

    def _adds_others(self, func: Callable[..., Any], active: list[Tensor]) -> bool:
        """Whether a function adds tensors of which none is a function of another alone, and no rule is for sums."""
        return func in ADDITIONS and self.sums_are_plain and self._source(active) is None

    def _at_once(self, func: Callable[..., Any], out: Any, active: list[Tensor]) -> Any:  # noqa: ANN401
        """The result of a function that is left to the chain rule."""
        if not active:
            return self._constant(out)
        if func in self.entrywise and len(active) == 1 and isinstance(out, Tensor):
            if func in MULTIPLICATIONS:
                self.scaled[out] = active[0]
            if out.shape == active[0].shape:
                self.sources[out] = self.sources.get(active[0], active[0])
        return self.mark(out)

    def _by_rule(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> Any:  # noqa: ANN401
        """Run a function that may have a rule of its own."""
        args, kwargs = positional(func, args, kwargs)
        if func in WRITTEN_OUT:
            with self:  # the mode is off while a torch function runs
                return WRITTEN_OUT[func](*args, **kwargs)
        active = self.active_among(args, kwargs)
        if not active:
            out = self._constant(func(*args, **kwargs))
            if KINDS.get(func) == "write":  # what constants are written into is one as well
                self._constant(args[0])
            return out
        if kwargs.get("inplace"):
            kwargs = {**kwargs, "inplace": False}
            self._outdate(args[0])
        function = IN_PLACE.get(func, func)
        changed = args[0] if function is not func else None
        kind = self._kind(function, args, active)
        if func in STATEMENTS and not is_overridden(args[0]) and self.table.rules.get(kind) is gradient:
            return self.follow("write", func, args, kwargs, active)  # the chain rule knows tensors that change
        summed = function in ADDITIONS or function in SUBTRACTIONS or function in REVERSED_SUBTRACTIONS
        follow = self._sum if summed else partial(self.follow, kind)
        out = follow(function, args, kwargs, active)
        if changed is not None:
            self._outdate(changed)
        return out

    def _kind(self, func: Callable[..., Any], args: tuple, active: Sequence[Tensor]) -> str:
        """What kind of operation a function is here; inside a block, by the shape of its residual stream."""
        block = self.capture.block
        stream = None if block is None else self.capture.blocks[block].states["entering"].shape
        return kind_of(func, args, active, stream)

    def _outdate(self, x: Tensor) -> None:
        """A tensor was to be changed in place, and with it what it is a view of: neither may be read again."""
        self.stale[x] = True
        if x._base is not None:
            self.stale[x._base] = True

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

        active = self.active_among(summands)
        if not active:  # scaled by what relevance does not pass through
            return self._constant(func(*args, **kwargs))
        return self.follow(self._kind(torch.add, tuple(summands), active), add, tuple(summands), {}, active)

    def _scaled(self, x: Any, factor: int | float) -> Any:  # noqa: ANN401
        """A summand times a number, as old as the summand."""
        active = self.active_among(x)
        if not active:
            return self._constant(x * factor)
        new = self.follow("scale", torch.mul, (x, factor), {}, active)
        if x in self.depends and new in self.depends:
            self.depends[new] = self.depends.get(x, -1)
        return new

    def follow(self, kind: str, func: Callable[..., Any], args: tuple, kwargs: dict, active: tuple[Tensor, ...]) -> Any:  # noqa: ANN401
        """The result of an operation by its rule, known to depend on what is explained."""
        block = self.capture.block
        # A region that is run again in the backward pass would be run without rules.
        self.capture.checkpointed |= saving_hooks() != self.capture.outside
        function = _KeepingResult(func)
        if kind == "residual":  # the stream was there before the sub-layer that read it, and roots before all else
            active = tuple(sorted(active, key=lambda x: self.depends.get(x, -1)))
            kind = "residual" if self._skips(*active) else "sum"
        operation = Operation(
            kind, function, args, kwargs, self.where, block, active,
            on_map=lambda relevance, rows: self.capture.on_map(block, relevance, rows),
            readers=self._reader(kind, active[0]),
            masks=self.capture.ids is not None,
            note=self.capture.notes.append,
            same=self.capture.same,
            before=block is None and not any(captured.states for captured in self.capture.blocks),
            gate=next((x for x in active if x in self.activated), None),
            batch_axis=0 if block is None or self.capture.body.blocks[block].batch_first else 1,
            flow=self.flow,
            source=self._source(active),
        )  # fmt: skip
        rule = self.table.rules.get(kind)
        if rule is None and kind == "unknown":
            rule = self.table.otherwise or self._ordinary(operation)
        if rule is None:
            name = resolve_name(func) or getattr(func, "__name__", "an operation")
            # Only relevance that arrives needs a rule: a loss beside the logits gives none back.
            return self.mark(
                refused(
                    func(*args, **kwargs),
                    (
                        f"the rules {self.table.name!r} do not say how relevance passes through {name} "
                        f"({operation.name!r}) in the module {operation.where or 'at the top'!r}. Add a rule for it: "
                        "name its kind in vitrail.relevance.lrp.kinds.KINDS and give the kind a rule in the rule set."
                    ),
                )
            )
        why = self.quotients.why_refused(*args[:2]) if kind == "over_constant" else None
        if why is not None:
            return self.mark(refused(func(*args, **kwargs), f"the module {self.where or 'at the top'!r} {why}"))
        out = self.mark(rule(operation))
        if isinstance(out, Tensor) and isinstance(function.result, Tensor):
            self.capture.same(function.result, out)
        function.result, function.open = None, False
        self._remember(kind, operation, out)
        if kind in NOTED:
            self.quotients.note(operation, func, out)
        return self._forked(kind, block, out)

    def _remember(self, kind: str, operation: Operation, out: Any) -> None:  # noqa: ANN401
        """Keep what later operations need to know of this one."""
        if kind == "activation":
            self.activated[out] = True
        if kind == "scale":
            self.scaled[out] = operation.active[0]
        if kind == "write":  # the tensor that was written into holds what is explained from now on
            changed = operation.args[0]
            self.mark([changed, changed._base])
        if kind in ENTRYWISE and isinstance(out, Tensor) and operation.source is not None:
            self.sources[out] = operation.source

    def _source(self, active: Sequence[Tensor]) -> Tensor | None:
        """The tensor that all of these are functions of, entry by entry; None where there is no such tensor."""
        found: list[Tensor] = [self.sources.get(x, x) for x in active]  # pyright: ignore[reportAssignmentType]
        first = found[0]
        same = all(x is first for x in found) and all(x.shape == first.shape for x in active)
        return first if same else None

    def _skips(self, one: Tensor, other: Tensor) -> bool:
        """Whether one summand, scaled or not, is what the other was computed from: a skip connection."""
        pairs = ((one, other), (other, one))
        return any(reached([node_of(b)], {node_of(self.scaled.get(a, a))}) for a, b in pairs)  # pyright: ignore[reportArgumentType]

    def _reader(self, kind: str, x: Tensor) -> Callable[[], int]:
        """Count a linear layer among those that read this tensor."""
        count = self.readers.get(x) or [0]
        count[0] += kind == "linear"
        self.readers[x] = count
        return lambda: count[0]

    def mark(self, out: Any) -> Any:  # noqa: ANN401
        """The result of an operation, known to depend on what is explained."""
        for x in tensors_in(out):
            if x.requires_grad:  # a rule may have made it a constant
                self.depends[x] = self.count
                self.count += 1
        return out

    def fork(self, x: Tensor) -> Tensor:
        """A tensor that is read twice: by a sub-layer and by the skip connection around it."""
        return self.mark(self.table.fork(x)) if self.table.fork is not None and self.active_among(x) else x

    def entry(self, x: Tensor) -> Tensor:
        """The stream that enters a block."""
        if self.flow is not None and self.active_among(x):
            return self.mark(at_block_entry(x, self.flow))
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

    def active_among(self, *given: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        """The tensors among arguments that depend on what is explained."""
        found = list(tensors_in(*given))
        if self.stale and any(x in self.stale or x._base in self.stale for x in found):
            raise RuleError(
                f"a tensor was changed in place and then read again in the module {self.where!r}. No rule can follow "
                "that: write x = x + y instead of x.add_(y) there."
            )
        return tuple(x for x in found if self._depends(x))

    def _is_root(self, x: Tensor) -> bool:
        return any(x is root for root in self.capture.roots)

    def _depends(self, x: Tensor) -> bool:
        """Whether a tensor depends on what is explained; one that came from nowhere may, which no rule can know."""
        if x in self.depends or self._is_root(x):
            return True
        if not self.capture.roots or not x.requires_grad or x.is_leaf or x in self.constants:
            return False
        roots = {node_of(root) for root in self.capture.roots}
        if None not in roots and not reached([node_of(x)], roots):  # pyright: ignore[reportArgumentType]
            self._constant(x)  # of weights alone, such as biases of attention that were kept in an earlier pass
            return False
        if self.table.otherwise is None:
            raise RuleError(
                f"a tensor in the module {self.where!r} was made where no rule can see it, by an autograd function of "
                "its own or by compiled code. Write that part in torch functions, or use conservative_lrp, which "
                "leaves it to the gradient."
            )
        return True

    def _constant(self, out: Any) -> Any:  # noqa: ANN401
        """The result of a function that reads nothing that is explained."""
        for x in tensors_in(out):
            if x.requires_grad and not x.is_leaf:  # no other is ever taken for a tensor that depends on anything
                self.constants[x] = 1
        return out

    @property
    def where(self) -> str:
        """The name of the module that runs, by the call stack: hooks that keep it would cost more than the rules."""
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_name in RUNNING and id(module := frame.f_locals.get("self")) in self.names:
                return self.names[id(module)]
            frame = frame.f_back
        return ""

    def _ordinary(self, operation: Operation) -> Rule | None:
        """Questions about a tensor, which give no tensor that depends on it, need no rule."""
        out = operation.run()
        return None if any(x.requires_grad for x in tensors_in(out)) else lambda _: out


def _says_how(kwargs: dict[str, Any]) -> bool:
    """Whether keywords only say how a function works, and hold no operands."""
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
    active = mode.active_among(args, kwargs)
    if not active:
        return forward(*args, **kwargs)
    mode.paused = True
    try:
        return mode.follow(kind, forward, args, kwargs, active)
    finally:
        mode.paused = False
