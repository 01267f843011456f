"""Metrics, data sets and the bench.

The table of the bench's metrics is in this file, so that the command line can list them without importing torch.
"""

MEASURE_PLACES = {
    "segmentation": "on_pictures:SEGMENTATION",
    "pointing": "on_pictures:POINTING",
    "boxes": "on_pictures:BOXES",
    "voc": "on_pictures:VOC_SEGMENTATION",
    "positive": "on_pictures:POSITIVE",
    "negative": "on_pictures:NEGATIVE",
    "insertion": "on_pictures:INSERTION",
    "deletion": "on_pictures:DELETION",
    "road_positive": "on_pictures:ROAD_POSITIVE",
    "road_negative": "on_pictures:ROAD_NEGATIVE",
    "text_deletion": "on_texts:DELETION",
    "text_padding": "on_texts:PADDING",
    "comprehensiveness": "on_texts:COMPREHENSIVENESS",
    "sufficiency": "on_texts:SUFFICIENCY",
    "kendall": "on_texts:KENDALL",
    "token_f1": "on_texts:TOKEN_F1",
    "precision_at_k": "on_texts:PRECISION_AT_K",
    "randomisation": "on_both:RANDOMISATION",
    "class_sensitivity": "on_both:CLASS_SENSITIVITY",
    "ranks": "on_both:RANKS",
    "gold_recall": "on_texts:GOLD_RECALL",
    "gold_rank": "on_texts:GOLD_RANK",
    "lds": "on_texts:LDS",
    "answer_drop": "on_texts:ANSWER_DROP",
    "answer_sufficiency": "on_texts:ANSWER_SUFFICIENCY",
}
"""Name -> `module:object` of the metric's `Measure` inside `vitrail.evaluate.bench`. A new metric is one line here."""
