"""Leave one out: what the answer loses without one token, or without one sentence.

The slow references that fast methods are compared with: one forward pass for each token or sentence. Removed tokens
are cut out of the text (`ablation`).
"""

import torch
from torch import Tensor

from vitrail.methods.ablation import Ablated, ablated, check_sources, sources_of
from vitrail.methods.options import check_count
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner


def losses(of: Ablated, sources: list[Tensor], *, batch: int) -> Tensor:
    """`s(all) - s(without the source)` for each source."""
    keep = torch.stack([of.real, *(of.real & ~source for source in sources)])
    found = of.scores(keep, batch=batch)
    return found[0] - found[1:]


def spread(values: Tensor, sources: list[Tensor]) -> Tensor:
    """One score for each token: a source's value in equal shares, so that the scores of a source add up to it."""
    return torch.stack([value * source / source.sum() for value, source in zip(values, sources, strict=True)]).sum(0)


def build(*, batch: int = 8) -> RerunMethod:
    """The fall of the target when one token is removed, token by token.

    Args:
        batch: how many ablations run at a time.
    """
    check_count("batch", batch)

    def explain(runner: Runner) -> Result:
        found = []
        for sample in range(runner.inputs.batch):
            of = ablated(runner, sample)
            places = of.context.nonzero()[:, 0]
            if len(places) == int(of.real.sum()):  # something has to be left to read
                places = places[:-1]
            sources = [torch.arange(len(of.real), device=places.device) == place for place in places]
            found.append(spread(losses(of, sources, batch=batch), sources))
        return Result(runner.run.among_tokens(torch.stack(found)))

    return RerunMethod(explain)


def build_sentences(*, sources: list | tuple | None = None, batch: int = 8) -> RerunMethod:
    """The fall of the target when one sentence is removed, shared equally by its tokens.

    Args:
        sources: spans `(start, stop)` of columns to remove instead of the sentences of the context.
        batch: how many ablations run at a time.
    """
    check_count("batch", batch)

    def explain(runner: Runner) -> Result:
        found = []
        for sample in range(runner.inputs.batch):
            of = ablated(runner, sample)
            chosen = sources_of(of, sources)
            found.append(spread(losses(of, chosen, batch=batch), chosen))
        return Result(runner.run.among_tokens(torch.stack(found)))

    return RerunMethod(explain, check=check_sources("sentence_drop", sources))
