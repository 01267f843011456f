import pytest
import torch

from vitrail import Attribution, targets
from vitrail.errors import InputError, OptionError
from vitrail.plots.tokens import join_runs, merge_pieces, pieces, real_tokens


def text(tokens, scores, **fields):
    return Attribution(
        scores=torch.tensor([scores], dtype=torch.float64),
        method="attcat",
        target=targets.logit(1),
        kind="text",
        tokens=(tuple(tokens),),
        **{"signed": True, **fields},
    )


def words(tokens):
    return merge_pieces(tokens, [0.0] * len(tokens), signed=True)[0]


def test_wordpiece_continues_with_two_hashes():
    assert words(["[CLS]", "un", "##believ", "##able", "!", "[SEP]"]) == ["[CLS]", "unbelievable", "!", "[SEP]"]


def test_sentencepiece_starts_words_with_a_bar():
    assert words(["<s>", "▁un", "believ", "able", "▁film", "</s>"]) == ["<s>", "unbelievable", "film", "</s>"]


def test_byte_level_bpe_starts_words_with_a_g():
    assert words(["<s>", "un", "believ", "able", "Ġfilm", "</s>"]) == ["<s>", "unbelievable", "film", "</s>"]


def test_byte_level_letters_are_read_as_the_bytes_they_stand_for():
    assert words(["Ġcaf", "Ã©", "Ġouvert"]) == ["café", "ouvert"]


def test_a_byte_level_text_without_spaces_is_read_as_its_letters():
    assert words(["ä½łå¥½", "ä¸", "ĸ"]) == ["你好", "�", "世"]
    assert words(["Ġa", "##", "Ġb"]) == ["a##", "b"]


def test_line_breaks_stay_apart_from_words():
    assert words(["It", "Ġis", "Ċ", "Ċ", "Ġthe", "Ġend", ".", "Ċ"]) == ["It", "is", "↵", "↵", "the", "end.", "↵"]


def test_tokens_without_marks_stay_apart():
    assert words(["a", "b"]) == ["a", "b"]


def test_a_signed_word_has_the_sum_of_its_pieces_and_an_unsigned_one_the_largest():
    tokens, scores = ["un", "##able", "x"], torch.tensor([2.0, -3.0, 0.5], dtype=torch.float64)
    assert merge_pieces(tokens, scores, signed=True) == (["unable", "x"], [-1.0, 0.5])
    assert merge_pieces(tokens, scores, signed=False) == (["unable", "x"], [2.0, 0.5])


def test_signed_merging_keeps_the_total():
    tokens, scores = ["▁a", "b", "▁c", "d", "e"], torch.randn(5, dtype=torch.float64)
    assert sum(merge_pieces(tokens, scores, signed=True)[1]) == pytest.approx(float(scores.sum()), abs=1e-12)


def test_a_score_for_every_token_is_asked_for():
    with pytest.raises(InputError, match="2 tokens came with 1 scores"):
        merge_pieces(["a", "b"], [1.0], signed=True)


def test_padding_is_left_out_wherever_it_stands():
    valid = torch.tensor([[False, True, True, False, False]])
    padded = text(["[PAD]", "a", "[PAD]", "x", "x"], [0.0, 1.0, 0.0, 0.0, 0.0], valid=valid)
    assert [piece.raw for piece in pieces(padded)] == ["a", "[PAD]"]
    assert real_tokens(text(["a", "b"], [1.0, 0.0]), 0) == [0, 1]


def test_a_sentence_of_nothing_but_zeros_is_shown():
    found = pieces(text(["a", "b"], [0.0, 0.0]))
    assert [piece.score for piece in found] == [0.0, 0.0]


def test_the_readout_is_shown_without_its_own_score_and_does_not_set_the_scale():
    found = pieces(text(["[CLS]", "a", "b"], [100.0, -2.0, 1.0], readout=torch.tensor([0])))
    assert [piece.score for piece in found] == [0.0, -1.0, 0.5]
    assert [piece.left_out for piece in found] == [True, False, False]


def test_scores_come_from_the_sample_asked_for():
    both = Attribution(
        scores=torch.tensor([[1.0, 2.0], [4.0, 1.0]], dtype=torch.float64),
        method="gae",
        target=targets.logit([0, 1]),
        kind="text",
        tokens=(("a", "b"), ("c", "d")),
    )
    assert [(piece.text, piece.value) for piece in pieces(both, 1)] == [("c", 4.0), ("d", 1.0)]
    with pytest.raises(OptionError, match="no sample 2"):
        pieces(both, 2)


def test_without_tokens_positions_are_shown():
    found = Attribution(torch.ones(1, 3, dtype=torch.float64), "gae", targets.logit(0), "text")
    assert [piece.text for piece in pieces(found)] == ["0", "1", "2"]


def test_pieces_of_one_word_have_no_space_between_them():
    found = pieces(text(["▁un", "able", "▁x"], [1.0, 2.0, 3.0]))
    assert [(piece.text, piece.glued) for piece in found] == [("un", False), ("able", True), ("x", False)]


def test_control_characters_cannot_steer_a_terminal():
    assert [piece.text for piece in pieces(text(["\x1b[31m", "\n", " "], [1.0, 2.0, 3.0]))] == ["�[31m", "↵", "␣"]


def test_an_image_has_no_sentence():
    image = Attribution(torch.ones(1, 4), "gae", targets.logit(0), "image", grid=(2, 2))
    with pytest.raises(OptionError, match="has no sentence"):
        pieces(image)


def test_places_of_a_picture_are_drawn_as_one_with_the_largest_score():
    tokens = ["<s>", *["<image>"] * 5, "▁what", "<unk>", "<unk>", "▁now"]
    found = join_runs(pieces(text(tokens, [0.1, 0.2, -0.9, 0.3, 0.0, 0.1, 0.4, 0.1, 0.2, 0.3])))
    assert [piece.text for piece in found] == ["<s>", "<image> ×5", "what", "<unk>", "<unk>", "now"]
    assert found[1].value == pytest.approx(-0.9)
    assert found[1].score == pytest.approx(-1.0)
