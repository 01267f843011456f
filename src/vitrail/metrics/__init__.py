"""Measures of explanations: pure functions on arrays and tensors; what runs a model is handed a function `score`."""

from vitrail.metrics import fills
from vitrail.metrics.answers import precision_at_k
from vitrail.metrics.areas import abpc, area, areas
from vitrail.metrics.boxes import box_energy, box_iou, box_masks
from vitrail.metrics.correlation import Agreement, agreement, class_sensitivity, kendall, rank_correlation
from vitrail.metrics.curves import Curve, perturbation_curve
from vitrail.metrics.drops import (
    aopc,
    aopc_per_level,
    comprehensiveness,
    log_odds,
    log_odds_per_level,
    sufficiency,
)
from vitrail.metrics.localisation import (
    Segmentation,
    SegmentationCounts,
    aggregate_segmentation,
    row_f1,
    segmentation,
    segmentation_counts,
)
from vitrail.metrics.multiclass import VocScore, aggregate_voc, voc, voc_counts
from vitrail.metrics.pointing import pointing_game
from vitrail.metrics.randomisation import Cascade, cascading_randomisation, randomised
from vitrail.metrics.rationales import TokenF1, TokenRanking, token_f1, token_f1_at_k, token_ranking
from vitrail.metrics.steps import deletion, insertion
from vitrail.metrics.texts import TextCurve, text_curve
from vitrail.metrics.tokens import perturbed_ids
from vitrail.metrics.words import word_scores

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
