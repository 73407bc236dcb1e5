"""The matplotlib backend of workers: ``plt.show()`` sends each open figure to the cell, as a PNG.

Draws without a window (Agg) and crops as notebooks do. Named in ``MPLBACKEND`` by
:mod:`nbaccel.launch.worker.display`; in a process that isn't a worker it shows nothing, as Agg.
"""

from __future__ import annotations

import base64
import io
from typing import Any

from matplotlib._pylab_helpers import Gcf
from matplotlib.backends.backend_agg import FigureCanvasAgg

from nbaccel.launch.worker.display import current_outlet

FigureCanvas = FigureCanvasAgg


def show(*_args: object, **_kwargs: object) -> None:
    """Show all figures that pyplot has open, and close them."""
    outlet = current_outlet()
    if outlet is None:
        return
    for manager in Gcf.get_all_fig_managers():
        figure = manager.canvas.figure
        if figure.axes or figure.get_children()[1:]:
            outlet.show({"image/png": as_png(figure), "text/plain": repr(figure)})
        Gcf.destroy(manager)


def as_png(figure: Any) -> str:
    """The figure as a base64 text, in its own resolution and colours."""
    target = io.BytesIO()
    canvas = figure.canvas if hasattr(figure.canvas, "print_png") else FigureCanvasAgg(figure)
    canvas.print_figure(
        target,
        format="png",
        dpi=figure.dpi,
        facecolor=figure.get_facecolor(),
        edgecolor=figure.get_edgecolor(),
        bbox_inches="tight",
    )
    return base64.b64encode(target.getvalue()).decode("ascii")
