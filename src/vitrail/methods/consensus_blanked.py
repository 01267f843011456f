"""AttnLRP on copies of a text in which words are blanked, for `consensus`.

Every copy lacks each third word, another third in each. A token's score is its mean over the copies that hold it, so
that it also counts what the token says where others, which would have said the same, are missing.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.errors import OptionError
from vitrail.methods.consensus_agreement import disagreement
from vitrail.methods.special_tokens import special_tokens
from vitrail.models.anatomy import Body
from vitrail.models.inputs import Inputs
from vitrail.models.readouts import last_position
from vitrail.relevance import Result
from vitrail.relevance.runner import RerunMethod, Runner

COPIES = 3
Tokens = Bool[Tensor, "b t"]


def blank_of(model: nn.Module) -> int:
    """The id that stands for no word: padding, else the end of a text, else the first of the vocabulary.

    Where positions are counted past the padding, as in RoBERTa, padding would move all words behind it.
    """
    config, names = getattr(model, "config", None), ["pad_token_id", "eos_token_id"]
    for name in reversed(names) if _counts_past_padding(model) else names:
        found = getattr(config, name, None)
        first = found[0] if isinstance(found, Sequence) and found else found
        if isinstance(first, int) and first >= 0:
            return first
    return 0


def _counts_past_padding(model: nn.Module) -> bool:
    tables = (m for n, m in model.named_modules() if n.endswith("position_embeddings") and isinstance(m, nn.Embedding))
    return any(table.padding_idx is not None for table in tables)


def words_of(runner: Runner) -> Tokens:
    """The tokens that may be blanked: not special ones, not where the answer is read, not the first and the last."""
    valid = runner.run.patches(runner.run.valid)
    rows = torch.arange(len(valid), device=valid.device)
    words = valid & ~special_tokens(runner.inputs) if runner.inputs.ids is not None else valid.clone()
    words[rows, valid.to(torch.int64).argmax(dim=1)] = False
    words[rows, last_position(valid)] = False
    padding = getattr(getattr(runner.model, "config", None), "pad_token_id", None)
    if runner.inputs.ids is not None and padding is not None:  # classifiers read the last token that is not this
        words[rows, last_position(valid & (runner.inputs.ids.to(valid.device) != padding))] = False
    if runner.part.position is not None and runner.part.position.max() < words.shape[1]:
        words[rows, runner.part.position] = False
    return words


def kept(words: Tokens, copies: int) -> Bool[Tensor, "c b t"]:
    """Which tokens each copy holds: the j-th lacks the words j, j + c, j + 2c, ... of every text."""
    number = words.cumsum(dim=1) - 1
    return torch.stack([~words | (number % copies != copy) for copy in range(copies)])


def blanked(inputs: Inputs, keep: Tokens, blank: int) -> Inputs:
    """The same call with an id for no word, or an embedding of zeros, in the place of tokens that are not kept."""
    if inputs.shown.is_floating_point():
        return inputs.showing(inputs.shown * keep[:, :, None])
    ids = inputs.shown.masked_fill(~keep.to(inputs.shown.device), blank)
    return replace(inputs.showing(ids), ids=ids)


def copies_disagree(found: Tensor, keep: Bool[Tensor, "c b t"], words: Tokens) -> Tensor:
    """One minus the mean over pairs of copies of Spearman's correlation, over the words that both hold.

    Pairs that share fewer than two words say nothing; where all do, the text is too short to tell, and this is one.
    """
    apart, tells = [], []
    for pair in combinations(range(len(keep)), 2):
        shared = words & keep[list(pair)].all(dim=0)
        one = disagreement(found[list(pair)].transpose(0, 1), shared)
        assert one is not None
        apart.append(one)
        tells.append(shared.sum(dim=1) > 1)
    weights = torch.stack(tells).to(found.dtype)
    mean = (torch.stack(apart) * weights).sum(dim=0) / weights.sum(dim=0).clamp(min=1)
    return torch.where(weights.sum(dim=0) > 0, mean, torch.ones_like(mean))


def at_once(runner: Runner) -> int:
    """How many copies run together: one where the model names no padding, for it may take single texts only."""
    config = getattr(runner.model, "config", None)
    unpadded = config is not None and getattr(config, "pad_token_id", None) is None
    return 1 if unpadded and runner.inputs.batch == 1 else COPIES


def scores_of(runner: Runner, method: RerunMethod, keep: Bool[Tensor, "c b t"]) -> Float[Tensor, "c b t"]:
    """What a procedure says of copies with words blanked that are run together."""
    inputs = blanked(runner.repeated(len(keep)), keep.flatten(0, 1), blank_of(runner.model))
    with runner.again(method.needs, method.pass_options, inputs=inputs, copies=len(keep)) as (run, part):
        result = method.explain(replace(runner, inputs=inputs, run=run, part=part))
    assert result.scores is not None
    return run.patches(result.scores).unflatten(0, (len(keep), -1)) * keep


def on_copies(method: RerunMethod) -> RerunMethod:
    """A procedure on a text, its scores averaged over copies with words blanked."""

    def explain(runner: Runner) -> Result:
        words = words_of(runner)
        keep = kept(words, COPIES)
        found = torch.cat([scores_of(runner, method, some) for some in keep.split(at_once(runner))])
        mean = runner.run.among_tokens(found.sum(dim=0) / keep.sum(dim=0))
        return Result(mean, disagreement=copies_disagree(found, keep, words))

    def check(model: nn.Module, body: Body, inputs: Inputs) -> None:
        if inputs.kind != "text":
            raise OptionError(f"words are blanked in text only, but these inputs are {inputs.kind}.")
        method.check(model, body, inputs)

    return RerunMethod(explain, check=check)
