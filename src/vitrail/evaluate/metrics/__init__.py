"""Measures of explanations: pure functions on arrays and tensors; what runs a model is handed a function `score`."""

from vitrail.evaluate.metrics import fills
from vitrail.evaluate.metrics.areas import (
    abpc,
    aopc,
    aopc_per_level,
    area,
    areas,
    comprehensiveness,
    log_odds,
    log_odds_per_level,
    sufficiency,
)
from vitrail.evaluate.metrics.correlation import Agreement, agreement, class_sensitivity, kendall, rank_correlation
from vitrail.evaluate.metrics.localisation import (
    Segmentation,
    SegmentationCounts,
    VocScore,
    aggregate_segmentation,
    aggregate_voc,
    row_f1,
    segmentation,
    segmentation_counts,
    voc,
    voc_counts,
)
from vitrail.evaluate.metrics.perturbation import Curve, deletion, insertion, perturbation_curve
from vitrail.evaluate.metrics.pointing import (
    box_energy,
    box_iou,
    box_masks,
    energy_pointing_game,
    grid_pointing_game,
    pointing_game,
)
from vitrail.evaluate.metrics.randomisation import Cascade, cascading_randomisation, randomised
from vitrail.evaluate.metrics.rationales import (
    TokenF1,
    TokenRanking,
    precision_at_k,
    token_f1,
    token_f1_at_k,
    token_ranking,
    word_scores,
)
from vitrail.evaluate.metrics.road import road, road_impute
from vitrail.evaluate.metrics.sensitivity import infidelity, max_sensitivity
from vitrail.evaluate.metrics.sources import lds, recall_at, topk_drop
from vitrail.evaluate.metrics.texts import TextCurve, perturbed_ids, text_curve

__all__ = [
    "Agreement",
    "Cascade",
    "Curve",
    "Segmentation",
    "SegmentationCounts",
    "TextCurve",
    "TokenF1",
    "TokenRanking",
    "VocScore",
    "abpc",
    "aggregate_segmentation",
    "aggregate_voc",
    "agreement",
    "aopc",
    "aopc_per_level",
    "area",
    "areas",
    "box_energy",
    "box_iou",
    "box_masks",
    "cascading_randomisation",
    "class_sensitivity",
    "comprehensiveness",
    "deletion",
    "energy_pointing_game",
    "fills",
    "grid_pointing_game",
    "infidelity",
    "insertion",
    "kendall",
    "lds",
    "log_odds",
    "log_odds_per_level",
    "max_sensitivity",
    "perturbation_curve",
    "perturbed_ids",
    "pointing_game",
    "precision_at_k",
    "randomised",
    "rank_correlation",
    "recall_at",
    "road",
    "road_impute",
    "row_f1",
    "segmentation",
    "segmentation_counts",
    "sufficiency",
    "text_curve",
    "token_f1",
    "token_f1_at_k",
    "token_ranking",
    "topk_drop",
    "voc",
    "voc_counts",
    "word_scores",
]
