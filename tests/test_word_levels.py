"""Scores at the word embeddings belong to words, wherever the blocks have their tokens."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitrail

IDS = torch.tensor([[3, 4, 5, 6, 9], [7, 8, 9, 1, 2]])


class Words(nn.Module):
    """A classifier that puts tokens of its own before the words, or reads the words in another order."""

    def __init__(self, memory, order):
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.places = nn.Embedding(30, 12), nn.Parameter(torch.randn(20, 12))
        self.memory, self.order = nn.Parameter(torch.randn(memory, 12)), order
        layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, norm_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 4)

    def states(self, words):
        words = words + self.places[: words.shape[1]]
        x = torch.cat([self.memory.expand(len(words), -1, -1), words[:, self.order]], dim=1)
        return self.head(self.encoder(x).mean(dim=1))

    def forward(self, input_ids):
        return self.states(self.embed(input_ids))


MODELS = {
    "in order": (0, [0, 1, 2, 3, 4]),
    "memory first": (2, [0, 1, 2, 3, 4]),
    "backwards": (0, [4, 3, 2, 1, 0]),
    "both": (1, [2, 0, 1, 4, 3]),
}


def gradients(model, share=1.0):
    words = (model.embed(IDS).detach() * share).requires_grad_()
    return torch.autograd.grad(model.states(words)[:, 1].sum(), words)[0]


@pytest.mark.parametrize("name", MODELS)
def test_scores_at_word_embeddings_are_those_of_their_words(name):
    model = Words(*MODELS[name]).double().eval()
    words = model.embed(IDS).detach()
    found = vitrail.explain(model, {"input_ids": IDS}, "input_x_gradient", 1, level="inputs_embeds")
    assert_close(found.scores, (gradients(model) * words).sum(dim=2))
    found = vitrail.explain(model, {"input_ids": IDS}, "integrated_gradients", 1, level="inputs_embeds", steps=4)
    mean = sum(gradients(model, (step + 0.5) / 4) for step in range(4)) / 4
    assert_close(found.scores, (mean * words).sum(dim=2))
    for method in ("attn_lrp", "conservative_lrp"):
        assert vitrail.explain(model, {"input_ids": IDS}, method, 1, level="inputs_embeds").scores.shape == (2, 5)
