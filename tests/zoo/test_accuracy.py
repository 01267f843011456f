import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
sys.path.append(str(ROOT))


def needs(path):
    return pytest.mark.skipif(not path.exists(), reason=f"the real data is not here: {path}")


def accuracy(table):
    return float(table.trace() / table.sum())


@needs(DATA / "imagenette160" / "val.zip")
def test_the_photo_model_knows_a_sample_of_the_validation_photographs():
    from training.evaluate import confusion, photo_pairs

    # 0.917 on all 3,925; on 100 of them one standard deviation is 0.03.
    assert accuracy(confusion(photo_pairs(DATA / "imagenette160", limit=100), 10)) > 0.86


@needs(DATA / "text" / "sst2" / "dev.tsv")
def test_the_sentiment_model_reaches_ninety_per_cent_on_the_dev_sentences():
    from training.evaluate import confusion, sentiment_pairs

    assert accuracy(confusion(sentiment_pairs(DATA / "text" / "sst2"), 2)) >= 0.9
