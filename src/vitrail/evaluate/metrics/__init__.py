"""Measures of explanations: pure functions on arrays and tensors; what runs a model is handed a function `score`."""

from vitrail.evaluate.metrics import fills
from vitrail.evaluate.metrics.answers import precision_at_k
from vitrail.evaluate.metrics.areas import abpc, area, areas
from vitrail.evaluate.metrics.boxes import box_energy, box_iou, box_masks
from vitrail.evaluate.metrics.correlation import Agreement, agreement, class_sensitivity, kendall, rank_correlation
from vitrail.evaluate.metrics.curves import Curve, perturbation_curve
from vitrail.evaluate.metrics.drops import (
    aopc,
    aopc_per_level,
    comprehensiveness,
    log_odds,
    log_odds_per_level,
    sufficiency,
)
from vitrail.evaluate.metrics.localisation import (
    Segmentation,
    SegmentationCounts,
    aggregate_segmentation,
    row_f1,
    segmentation,
    segmentation_counts,
)
from vitrail.evaluate.metrics.multiclass import VocScore, aggregate_voc, voc, voc_counts
from vitrail.evaluate.metrics.pointing import pointing_game
from vitrail.evaluate.metrics.randomisation import Cascade, cascading_randomisation, randomised
from vitrail.evaluate.metrics.rationales import TokenF1, TokenRanking, token_f1, token_f1_at_k, token_ranking
from vitrail.evaluate.metrics.steps import deletion, insertion
from vitrail.evaluate.metrics.texts import TextCurve, text_curve
from vitrail.evaluate.metrics.tokens import perturbed_ids
from vitrail.evaluate.metrics.words import word_scores

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
    "fills",
    "insertion",
    "kendall",
    "log_odds",
    "log_odds_per_level",
    "perturbation_curve",
    "perturbed_ids",
    "pointing_game",
    "precision_at_k",
    "randomised",
    "rank_correlation",
    "row_f1",
    "segmentation",
    "segmentation_counts",
    "sufficiency",
    "text_curve",
    "token_f1",
    "token_f1_at_k",
    "token_ranking",
    "voc",
    "voc_counts",
    "word_scores",
]
