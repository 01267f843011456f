"""Reports: one HTML file that opens from disk, of a folder of inputs or of a results file of the bench.

`of_inputs(model, source)` explains, `of_results(path)` reads what `vitrail bench run` measured; `.save(path)` writes.
"""

from vitrail.plots.report.explaining import of_inputs
from vitrail.plots.report.pages import Entry, Map, Measured, Report, Row, of_results

__all__ = ["Entry", "Map", "Measured", "Report", "Row", "of_inputs", "of_results"]
