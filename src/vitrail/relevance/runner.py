"""A model with one input and one scalar, for methods that run it more than once or change its backward pass."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from vitrail.capture.outputs import Scalar, read_output, run_model
from vitrail.capture.recording.continuations import keeping
from vitrail.capture.recording.forward import forward
from vitrail.capture.recording.hooks import replaced_stream, with_stream_of
from vitrail.capture.recording.layer import Layer
from vitrail.capture.recording.pass_options import PLAIN, ComputeSettings, PassOptions, Wanted
from vitrail.capture.recording.passes import DeferredCheck, Pass, unread
from vitrail.capture.samples import MOST, check_copies, measure_repeats
from vitrail.capture.shadow import autograd, hooks, memory_of, remembered, rewind_random
from vitrail.capture.structure.cache import form_of
from vitrail.capture.structure.tokens import batch_first
from vitrail.errors import InputError, MethodError, SeamError, VitrailError
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.relevance import LayerReader, Result, Walk
from vitrail.relevance.walk import walk_events
from vitrail.targets import FORMULAS


@dataclass(frozen=True)
class Runner:
    """One model, one batch of inputs, one scalar per sample.

    `run` is a pass that has been made already, as the method asked for it, and `part` its scalar.
    """

    model: nn.Module
    body: Body
    inputs: Inputs
    run: Pass
    part: Scalar
    settings: ComputeSettings

    @property
    def rows(self) -> Int[Tensor, " b"]:
        """All samples."""
        return torch.arange(self.inputs.batch, device=self.run.valid.device)

    def layers(self, needs: frozenset[str], *, last_only: bool = False) -> list[Layer]:
        """The layers of the pass that has been made, first to last, with the gradients of the scalar."""
        return list(self.run.layers(self.part, Wanted.of(needs, last_only=last_only), again=True))[::-1]

    def read_by(self, *methods: Walk | LayerReader) -> list[Result]:
        """Let methods read the pass that has been made, from one backward pass."""
        if not methods:
            return []
        needs = frozenset[str]().union(*(method.needs for method in methods))
        wanted = Wanted.of(needs, last_only=all(method.last_only for method in methods))
        events = self.run.events(self.part, wanted, again=True, shared=len(methods) > 1)
        return [made.result for made in walk_events(methods, events)]

    def repeated(self, copies: int) -> Inputs:
        """The whole batch several times over, copy after copy."""
        return self.inputs if copies == 1 else self.inputs.take(self.rows.repeat(copies))

    def part_of(self, logits: Tensor, copies: int) -> Float[Tensor, " m"]:
        """The scalar of all samples of several copies of the batch; a user's function is given one batch at a time."""
        if self.part.target.first is not None and self.part.target.name in FORMULAS:
            return self.part.read(logits, self.rows.repeat(copies))
        return torch.cat([self.part.read(some, self.rows) for some in logits.chunk(copies)])

    @contextmanager
    def again(
        self,
        needs: frozenset[str] = frozenset(),
        pass_options: PassOptions = PLAIN,
        *,
        inputs: Inputs | None = None,
        copies: int = 1,
        lean: bool = False,
    ) -> Iterator[tuple[Pass, Scalar]]:
        """Another pass on inputs of the same samples, and the same scalar in it.

        Args:
            copies: how often the inputs hold the whole batch, copy after copy (`repeated`).
            lean: nothing but layers is read, so blocks may be run again to save memory, and logits are computed at the
                rows of the scalar alone.
        """
        chosen = self.repeated(copies) if inputs is None else inputs
        self.draw_again()
        less = {"lean": True, "rows": self.run.output.rows} if lean else {}
        made = forward(self.model, chosen, self.body, Wanted.of(needs), self.settings, pass_options, **less)
        with ExitStack() as stack:
            with self.resized(chosen.batch):
                run = stack.enter_context(made)
            if len(run.output.wide) != chosen.batch:
                self.refuse_size(run.output.wide, chosen.batch)
            scalar = self.part_of(run.output.wide, copies)
            position = None if self.part.position is None else self.part.position.repeat(copies)
            weights = None if self.part.rows is None else self.part.rows.repeat(copies, 1)
            batch, read = self.inputs.batch, self.part.read
            part = self.part if copies == 1 else replace(self.part, read=lambda x, rows: read(x, rows % batch))
            yield run, replace(part, scalar=scalar, position=position, rows=weights, needed=False)

    def recorded(
        self,
        needs: frozenset[str],
        pass_options: PassOptions = PLAIN,
        *,
        inputs: Inputs | None = None,
        copies: int = 1,
        last_only: bool = False,
    ) -> list[Layer]:
        """The layers of another pass, first to last, with the gradients of the same scalar."""
        with self.again(needs, pass_options, inputs=inputs, copies=copies) as (run, part):
            return list(run.layers(part, Wanted.of(needs, last_only=last_only), again=False))[::-1]

    def follow(self, method: "RerunMethod") -> Result:
        """The result of another procedure on the same inputs and the same scalar, in a pass as it asks for."""
        if method.pass_options == PLAIN and not method.needs:  # it makes its own
            return method.explain(self)
        with self.again(method.needs, method.pass_options) as (run, part):
            return method.explain(replace(self, run=run, part=part))

    def gradient(self) -> list[tuple[Tensor, Tensor]]:
        """Every place where the gradient of the pass ends, with the gradient of the scalar there."""
        return self.run.at_roots(self.part)

    def nonzero_gradient(self) -> tuple[Tensor, Tensor]:
        """The one place where the gradient ends, and the gradient, which is not zero everywhere in a sample."""
        ((x, gradient),) = self.gradient()
        stream, blocks = self.run.capture.level == "embedding_output", self.body.blocks
        self.defer_zero(gradient, axis=1 if stream and blocks and not blocks[0].batch_first else 0)
        return x, gradient

    def defer_zero(self, gradient: Tensor, *, axis: int) -> None:
        """Check later that no sample has a gradient of zeros, if it is needed.

        Args:
            axis: that of the samples.
        """
        if self.part.needed and gradient.shape[axis] == self.inputs.batch:
            zero = (gradient == 0).movedim(axis, 0).flatten(1).all(dim=1)
            self.run.deferred.append(DeferredCheck(zero, unread))

    def draw_again(self) -> None:
        """Let another pass draw the random numbers of the first; raise if the model still answers in another way.

        Asked once in a call, and measured once for each form of input.
        """
        call = memory_of(self.model).call
        if "repeats" not in call:
            key = form_of(self.inputs, samples=MOST, longest=math.inf).keys[0]
            call["repeats"] = remembered.get(
                self.model, "repeats", key, partial(measure_repeats, self.model, self.inputs)
            )
        same, draws = call["repeats"]
        if not same:
            raise InputError(
                f"{type(self.model).__name__} gives another answer when it runs again on the same inputs: it counts "
                "its calls, or draws random numbers. This method runs it more than once, so its scores would belong to "
                "no one answer. Use a method that runs the model once, such as gae."
            )
        if draws:
            rewind_random()

    @contextmanager
    def resized(self, batch: int) -> Iterator[None]:
        """Refuse in words where the model takes only as many samples as it was given, or joins their answers."""
        own = self.inputs.batch
        if batch == own:
            yield
            return
        if batch > own:
            check_copies(self.model, self.inputs)
        try:
            yield
        except (VitrailError, torch.OutOfMemoryError, CheckpointError):
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            said = (str(error) or repr(error)).splitlines()[0][:200]
            raise MethodError(
                f"this method runs {batch} samples at once, made of the {own} given, and "
                f"{type(self.model).__name__} fails there: {said}. "
                "Its batch seems to be fixed. Use a method that runs the batch as it is, such as gae."
            ) from error

    def score(
        self, inputs: Inputs, rows: Int[Tensor, " m"], edit: Callable[[Tensor], Tensor] | None = None
    ) -> Float[Tensor, " m"]:
        """The scalar of a plain pass without gradients, on inputs made of these samples.

        Args:
            edit: what becomes of the residual stream before it enters the first block.
        """
        return self.answer(inputs, lambda logits: self.part.read(logits, rows), edit)

    def answer(
        self,
        inputs: Inputs,
        read: Callable[[Tensor], Tensor],
        edit: Callable[[Tensor], Tensor] | None = None,
        *,
        rows: Int[Tensor, " r"] | None = None,
    ) -> Float[Tensor, " m"]:
        """Return the explained scalar, read off the logits of a plain pass without gradients.

        Args:
            edit: as for `score`.
            rows: the only rows whose logits are read, in order; None for all.
        """

        def enter(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            return None if edit is None else replaced_stream(args, kwargs, edit)

        handles = [self.body.blocks[0].module.register_forward_pre_hook(enter, with_kwargs=True)] if edit else []
        kept = nullcontext(inputs) if rows is None else keeping(self.model, inputs, rows)
        with autograd(gradients=False), hooks(handles), kept as given:
            logits = self.logits(given)
        if len(logits) != inputs.batch:
            self.refuse_size(logits, inputs.batch)
        return read(logits)

    def logits(self, inputs: Inputs) -> Tensor:
        """The logits of the model on other inputs, in a precision that is safe to compute with."""
        self.draw_again()
        with self.resized(inputs.batch):
            answer = run_model(self.model, inputs)
        return read_output(answer, span=self.body.anatomy.span, encodings=self.body.encodings).wide

    def refuse_size(self, logits: Tensor, batch: int) -> None:
        """Raise if another number of answers than of samples is new: the batch of the model is fixed."""
        if len(self.run.output.wide) == self.inputs.batch:
            raise MethodError(
                f"this method runs {batch} samples at once, made of the {self.inputs.batch} given, and "
                f"{type(self.model).__name__} gives {len(logits)} answers. Its batch seems to be fixed. Use a method "
                "that runs the batch as it is, such as gae."
            )


@dataclass(frozen=True)
class RerunMethod:
    """A method that runs the model again, as its paper says.

    Args:
        explain: the method.
        pass_options: how the pass is run that is made for it.
        needs: states and gradients that pass keeps (`capture.pass_options.KEEPS`).
        scalar: `"logit"` or `"probability"`: what of a plain class target is explained.
        check: raises if the method does not apply to this model and these inputs; called before the model runs.
    """

    explain: Callable[[Runner], Result]
    pass_options: PassOptions = PLAIN
    needs: frozenset[str] = frozenset()
    scalar: str = "logit"
    check: Callable[[nn.Module, Body, Inputs], None] = lambda model, body, inputs: None


Tokens = Float[Tensor, "b t d"]
FEWEST = 2


def leaving(runner: Runner, index: int) -> Tokens:
    """Return the output of a block in the pass that has been made, with its graph."""
    return batch_first(runner.body.blocks[index], runner.run.capture.blocks[index].states["leaving"])


def scalar_from(runner: Runner, tokens: Tokens, *, copies: int = 1) -> Float[Tensor, " b"]:
    """The scalar, had the last block given these tokens. The blocks are not run again, all else is.

    Args:
        copies: how often the tokens hold the whole batch, copy after copy. Models whose head also reads other tensors
            of the batch may refuse more than one.
    """
    # What is before the blocks is not needed as often, if the head reads nothing else of the batch. Two samples are
    # enough; of a single one the head might take something for all.
    few = runner.run.inputs if runner.inputs.batch <= FEWEST else runner.run.inputs.take(torch.arange(FEWEST))
    if copies > 1 or few is not runner.run.inputs:
        with suppress(RuntimeError, ValueError, IndexError, MethodError, SeamError):
            return _scalar_from(runner, tokens, few, copies)
    whole = runner.run.inputs if copies == 1 else runner.run.inputs.take(runner.rows.repeat(copies))
    return _scalar_from(runner, tokens, whole, copies)


def _scalar_from(runner: Runner, tokens: Tokens, inputs: Inputs, copies: int) -> Float[Tensor, " b"]:
    """The scalar of a call with these inputs, whose last block gives these tokens."""
    blocks, given = runner.body.blocks, [captured.returned for captured in runner.run.capture.blocks]
    given[-1] = with_stream_of(given[-1], batch_first(blocks[-1], tokens))
    with ExitStack() as stack:
        stack.enter_context(autograd(gradients=True))
        for block, out in zip(blocks, given, strict=True):
            stack.enter_context(forwarding(block.module, partial(lambda out, /, *args, **kwargs: out, out)))
        logits = runner.logits(inputs)
    if len(logits) != copies * runner.inputs.batch:
        raise SeamError(f"the head gave {len(logits)} answers for {copies} copies of a batch of {runner.inputs.batch}.")
    return runner.part_of(logits, copies)


@contextmanager
def forwarding(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let the module of a shadow run this instead of its own forward."""
    own = vars(module).get("forward")
    vars(module)["forward"] = forward  # the module's own attribute hides its class's
    try:
        yield
    finally:
        del vars(module)["forward"]
        if own is not None:
            vars(module)["forward"] = own
