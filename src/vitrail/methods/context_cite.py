"""ContextCite: a sparse linear model of what the answer gains from each source of its context.

Cohen-Wang et al., "ContextCite: Attributing Model Generation to Context", NeurIPS 2024, arXiv:2409.00729.
Paper -> code: v -> `kept` (which sources an ablation keeps, each with probability one half), f(v) -> the logit of the
answer's probability, tau -> the weights of a Lasso, alpha -> `penalty`.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import MissingExtraError
from vitrail.methods.ablation import Ablated, check_sources, for_each_sample, sources_of, spread
from vitrail.methods.options import check_count, check_seed
from vitrail.relevance.runner import RerunMethod


def kept_sources(sources: int, ablations: int, seed: int) -> Bool[Tensor, "m s"]:
    """Return the sources that each ablation keeps: each one with probability one half."""
    return torch.rand(ablations, sources, generator=torch.Generator().manual_seed(seed)) < 0.5


def logit_of(log_probability: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """`log(p / (1 - p))` from `log p`, which stays finite where p rounds to one."""
    log_probability = log_probability.double().clamp(max=-1e-12)
    return log_probability - torch.log(-torch.expm1(log_probability))


def surrogate(kept: Bool[Tensor, "m s"], values: Float[Tensor, " m"], penalty: float) -> Float[Tensor, " s"]:
    """The weights of a Lasso on standardised columns, in the units of the sources."""
    try:
        from sklearn.linear_model import Lasso  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise MissingExtraError(
            "context_cite fits a Lasso with scikit-learn: pip install 'vitrail[answers]'"
        ) from error
    columns = kept.double()
    deviation = columns.std(dim=0, correction=0)
    scaled = (columns - columns.mean(dim=0)) / deviation.clamp(min=1e-12)
    spread_of = values.std(correction=0).clamp(min=1e-12)
    fitted = Lasso(alpha=penalty).fit(scaled.numpy(), ((values - values.mean()) / spread_of).numpy())
    return torch.from_numpy(fitted.coef_) * spread_of / deviation.clamp(min=1e-12)


def masks(of: Ablated, sources: list[Tensor], kept: Bool[Tensor, "m s"]) -> Bool[Tensor, "m t"]:
    """The tokens that each ablation keeps: those of its sources, and those of no source."""
    table = torch.stack(sources)
    removed = (~kept).to(table.device).float() @ table.float() > 0
    keep = of.real & ~removed
    # Where sources are the whole context, its last token stays: something has to predict the answer.
    last = int(of.context.nonzero()[-1, 0])
    read = keep & of.context if of.continues else keep
    keep[:, last] |= ~read.any(dim=1)
    return keep


def build(
    *, ablations: int = 64, penalty: float = 0.01, sources: list | tuple | None = None, seed: int = 0, batch: int = 8
) -> RerunMethod:
    """The weights of a sparse linear model of the answer's probability, fitted to random ablations of sentences.

    Args:
        ablations: how many random subsets of the sources the model runs on.
        penalty: the Lasso's alpha.
        sources: spans `(start, stop)` of columns instead of the sentences of the context.
        seed: of the random subsets.
        batch: how many ablations run at a time.
    """
    check_count("ablations", ablations)
    check_count("batch", batch)
    check_seed(seed)

    def scores(of: Ablated) -> Tensor:
        chosen = sources_of(of, sources)
        kept = kept_sources(len(chosen), ablations, seed)
        values = of.scores(masks(of, chosen, kept), batch=batch).cpu()
        target = of.runner.part.target
        plain = target.name == "continuation" and target.scalar == "log_probability"
        values = logit_of(values) if plain else values.double()
        return spread(surrogate(kept, values, penalty).to(of.real.device, torch.float32), chosen)

    return RerunMethod(lambda runner: for_each_sample(runner, scores), check=check_sources("context_cite", sources))
