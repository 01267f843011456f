"""Pictures of attributions: every function returns its figure and never shows or saves it."""

from vitrail.plots.figures import comparison_sheet, head_grid, layer_heatmap, layer_maps, plot_attribution
from vitrail.plots.page import to_html
from vitrail.plots.pictures import overlay
from vitrail.plots.tokens import merge_pieces, sentence, terminal

__all__ = [
    "comparison_sheet",
    "head_grid",
    "layer_heatmap",
    "layer_maps",
    "merge_pieces",
    "overlay",
    "plot_attribution",
    "sentence",
    "terminal",
    "to_html",
]
