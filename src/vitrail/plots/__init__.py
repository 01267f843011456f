"""Pictures of attributions: every function returns its figure and never shows or saves it."""

from vitrail.plots.attribution import plot_attribution
from vitrail.plots.heads import head_grid
from vitrail.plots.layers import layer_heatmap, layer_maps
from vitrail.plots.overlay import overlay
from vitrail.plots.page import to_html
from vitrail.plots.pieces import merge_pieces
from vitrail.plots.sentence import sentence
from vitrail.plots.sheet import comparison_sheet
from vitrail.plots.terminal import terminal

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
