"""The picture of a group's lag: one page that works without a network, or one PNG.

Altair makes both of one description; nothing else draws.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jobs.errors import JobFailed
from jobs.lag_history import RETRIED, SUSPENDED, LagHistory

try:
    import altair as alt
    import vl_convert  # noqa: F401 - what Altair writes PNG and pages with
except ImportError as error:
    raise JobFailed(
        f"The picture needs the extra 'charts' ({error}): pip install 'pyspark-rocketmq[charts]'."
    ) from error

_WIDTH: Final = 900
_HEIGHT: Final = 230
_LOW: Final = 90
_TIME: Final = "time (UTC)"


def write_page(history: LagHistory, file: Path) -> None:
    """Write an HTML page that holds everything it needs."""
    _chart(history).save(
        str(file),
        format="html",
        inline=True,
        embed_options={"renderer": "svg"},
        json_kwds={"cls": _JsonInScript},
    )


def write_png(history: LagHistory, file: Path) -> None:
    """Write the same as a PNG, at twice the page's resolution."""
    _chart(history).save(str(file), format="png", scale_factor=2)


class _JsonInScript(json.JSONEncoder):
    """JSON that stands in a page's script: no name of a broker, topic or group can end the script or begin a comment."""

    def encode(self, o: Any) -> str:
        """As JSON, with the marks of HTML as escapes."""
        text = super().encode(o)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chart(history: LagHistory) -> alt.VConcatChart:
    # Altair refuses more than 5,000 records, lest they end up in a notebook.
    with alt.data_transformers.enable("default", max_rows=None):
        records = history.queue_records()
        chosen = alt.selection_point(fields=["queue"], bind="legend")
        panels: list[Any] = [
            _lines(records, "backlog", "messages waiting", chosen) + _marks(records) + _resets(history),
            _lines(records, "rate", "messages consumed per second", chosen) + _resets(history),
        ]
        if history.dead_letter_records():
            panels.append(_dead_letters(history))
        times = [datetime.fromtimestamp(at_s, UTC).isoformat(" ", "seconds")[:19] for at_s in history.times_s]
        title = alt.Title(
            f"Consumer group {history.group}",
            subtitle=[f"{times[0]} to {times[-1]} UTC", *_explained(records, history)],
            anchor="start",
        )
        chart = alt.vconcat(*panels, title=title).resolve_scale(x="shared", color="shared", shape="shared")
        chart = chart.configure_title(anchor="start")
        columns = 1 + len({record["queue"] for record in records}) // 25
        finished: alt.VConcatChart = chart.configure_legend(symbolLimit=0, columns=columns)
        return finished


def _explained(records: list[dict[str, Any]], history: LagHistory) -> list[str]:
    """What the marks mean, of those that are there."""
    states = {record["state"] for record in records}
    words = [
        ("triangle: queue suspended by its listener", SUSPENDED in states),
        ("circle: its next message is tried again", RETRIED in states),
        ("dashed line: offsets reset by an operator", bool(history.resets_s)),
    ]
    shown = "; ".join(text for text, is_there in words if is_there)
    return [shown] if shown else []


def _lines(records: list[dict[str, Any]], field: str, title: str, chosen: alt.Parameter) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(_data(records), title=title)
        .mark_line(interpolate="step-before" if field == "rate" else "linear", clip=True)
        .encode(
            x=_time_axis(),
            y=alt.Y(f"{field}:Q", title=None, axis=alt.Axis(format="~s")),
            color=alt.Color(
                "queue:N",
                title="queue (click to see it alone)",
                # In the order of the records, where 10 comes after 9.
                scale=alt.Scale(domain=list(dict.fromkeys(record["queue"] for record in records))),
            ),
            opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.08)),
            tooltip=[
                alt.Tooltip("queue:N"),
                alt.Tooltip("at:T", title=_TIME, format="%H:%M:%S"),
                alt.Tooltip("backlog:Q", title="messages waiting"),
                alt.Tooltip("rate:Q", title="messages per second"),
                alt.Tooltip("nextOffset:Q", title="next offset"),
            ],
        )
        .add_params(*([chosen] if field == "backlog" else []))
        .properties(width=_WIDTH, height=_HEIGHT)
    )
    return chart


def _marks(records: list[dict[str, Any]]) -> alt.Chart:
    marked = [record for record in records if record["state"] is not None and record["backlog"] is not None]
    chart: alt.Chart = (
        alt.Chart(_data(marked))
        .mark_point(filled=True, size=70, opacity=1.0)
        .encode(
            x=_time_axis(),
            y="backlog:Q",
            color="queue:N",
            shape=alt.Shape(
                "state:N",
                title=None,
                legend=None,
                scale=alt.Scale(domain=[SUSPENDED, RETRIED], range=["triangle-up", "circle"]),
            ),
            tooltip=["queue:N", "state:N", "reconsumeTimes:Q"],
        )
    )
    return chart


def _resets(history: LagHistory) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(_data(history.reset_records()))
        .mark_rule(strokeDash=[6, 4], color="#555")
        .encode(x=_time_axis())
    )
    return chart


def _dead_letters(history: LagHistory) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(_data(history.dead_letter_records()), title="new dead letters")
        .mark_bar(color="#b00020", width=5)
        .encode(x=_time_axis(), y=alt.Y("deadLetters:Q", title=None), tooltip=["deadLetters:Q"])
        .properties(width=_WIDTH, height=_LOW)
    )
    return chart


def _data(records: list[dict[str, Any]]) -> alt.Data:
    data: alt.Data = alt.Data(values=records)  # type: ignore[no-untyped-call]
    return data


def _time_axis() -> alt.X:
    return alt.X("at:T", title=_TIME, scale=alt.Scale(type="utc"), axis=alt.Axis(format="%m-%d %H:%M"))
