"""Timelines as a page to look into: hover over any operation to see its name and what is alive then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autorecompute.memory import Phase
from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.memory import Timeline

COLORS = {Phase.FORWARD: "#4477aa", Phase.LOSS: "#ccbb44", Phase.BACKWARD: "#228833", Phase.RECOMPUTE: "#ee6677"}
"""Told apart by readers with any colour vision (Paul Tol's bright scheme)."""

HOVER = "%{customdata[0]}<br>%{customdata[1]}: %{customdata[2]} alive<extra>%{fullData.name} %{y:.1f} MiB</extra>"


def make_page(timelines: Mapping[str, Timeline]) -> str:
    """One HTML page that needs nothing from elsewhere, with the timelines side by side on one scale."""
    from plotly.subplots import make_subplots

    names = [f"{name}: {format_bytes(timeline.peak_bytes)} at the peak" for name, timeline in timelines.items()]
    figure = make_subplots(cols=len(timelines), shared_yaxes=True, subplot_titles=names)
    for column, timeline in enumerate(timelines.values(), start=1):
        for trace in _make_traces(timeline, is_first=column == 1):
            figure.add_trace(trace, row=1, col=column)
        figure.add_vline(x=timeline.profile.backward, line={"dash": "dot", "width": 1}, row=1, col=column)
    figure.update_xaxes(title="operation of the step (dotted: backward begins)")
    figure.update_yaxes(title="alive, MiB", col=1)
    figure.update_layout(template="plotly_white", legend_title="made in", hovermode="x")
    page: str = figure.to_html(include_plotlyjs=True)
    return page


def _make_traces(timeline: Timeline, *, is_first: bool) -> Sequence[Any]:
    from plotly.graph_objects import Scatter

    told = [
        (operation.operator, operation.name, format_bytes(live))
        for operation, live in zip(timeline.profile.operations, timeline.live_bytes, strict=True)
    ]
    return [
        Scatter(
            y=[size / MIB for size in held],
            name=str(phase),
            legendgroup=str(phase),
            showlegend=is_first or phase is Phase.RECOMPUTE,
            stackgroup="alive",
            line={"width": 0, "color": COLORS[phase]},
            customdata=told,
            hovertemplate=HOVER,
        )
        for phase, held in timeline.live_by_phase().items()
        if any(held)
    ]
