"""Draws a group's lag over time, as a page that works without a network or as a PNG.

A queue's backlog at a time is the queue's end at that time minus the group's next offset at that time. The
offset store's history has the next offset. A broker can report the former end later too: it searches the
queue by time. Altair draws both forms from one description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.history import Moment

SUSPENDED: Final = "suspended"
RETRIED: Final = "retried"

Ends = Mapping[MessageQueue, int]
"""End of each queue at one time: the offset of the first message stored at that time or later."""

_WIDTH: Final = 900
_HEIGHT: Final = 230
_LOW: Final = 90
_TIME: Final = "time (UTC)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagHistory:
    """Samples of one group's offsets, of its queues' ends and of dead letters, in order of time."""

    group: str
    times_s: tuple[float, ...]
    """Wall-clock seconds of the samples."""
    moments: tuple[Moment | None, ...]
    """The group's rows in the store at each time; None before the first change."""
    ends: tuple[Ends, ...]
    dead_letters: tuple[int, ...]
    """Number of dead letters of the whole group up to each time."""
    resets_s: tuple[float, ...]
    """Wall-clock seconds at which the group was reset, by an operator or by a member."""

    def queue_records(self) -> list[dict[str, Any]]:
        """Return one record per queue and sample in which the group has the queue.

        A record contains the backlog, the rate in messages per second, and whether the queue was suspended or
        its next message given back. Times are in milliseconds; None stands for unknown values.
        """
        queues = sorted({queue for moment in self.moments if moment is not None for queue in moment.rows})
        return [
            record
            for queue in queues
            for index in range(len(self.times_s))
            if (record := self._record(queue, index))
        ]

    def dead_letter_records(self) -> list[dict[str, Any]]:
        """Return time (ms) and number of the new dead letters, for each sample at which there are some."""
        steps = zip(self.times_s[1:], self.dead_letters, self.dead_letters[1:], strict=False)
        return [
            {"at": _ms(at_s), "deadLetters": after - before}
            for at_s, before, after in steps
            if after > before
        ]

    def reset_records(self) -> list[dict[str, Any]]:
        """Return one record per reset of the group, with its time in milliseconds."""
        return [{"at": _ms(at_s)} for at_s in self.resets_s]

    def _record(self, queue: MessageQueue, index: int) -> dict[str, Any] | None:
        moment = self.moments[index]
        row = None if moment is None else moment.rows.get(queue)
        if row is None:
            return None
        at_s, end = self.times_s[index], self.ends[index].get(queue)
        state = None
        if row.state.suspended_until_s is not None and row.state.suspended_until_s > row.updated_at_s:
            state = SUSPENDED
        elif row.state.reconsume_times:
            state = RETRIED
        return {
            "at": _ms(at_s),
            "queue": peer_text(f"{queue.topic} {queue.broker_name}:{queue.queue_id}"),
            "nextOffset": row.next_offset,
            "backlog": None if end is None else max(0, end - row.next_offset),
            "rate": self._rate(queue, index),
            "state": state,
            "reconsumeTimes": row.state.reconsume_times,
        }

    def _rate(self, queue: MessageQueue, index: int) -> float | None:
        """Return the messages consumed per second since the previous sample.

        None if that sample lacks the queue, or if since then the queue's offset fell or the group was reset.
        """
        before = self.moments[index - 1] if index else None
        here = self.moments[index]
        assert here is not None
        if before is None or queue not in before.rows:
            return None
        span_s = self.times_s[index] - self.times_s[index - 1]
        consumed = here.rows[queue].next_offset - before.rows[queue].next_offset
        is_moved = any(self.times_s[index - 1] < at_s <= self.times_s[index] for at_s in self.resets_s)
        return None if consumed < 0 or is_moved else round(consumed / span_s, 3)


def sample_times(since_s: float, until_s: float, count: int) -> tuple[float, ...]:
    """Return ``count`` equidistant times, including both ends."""
    step_s = (until_s - since_s) / (count - 1)
    return tuple(since_s + number * step_s for number in range(count))


def moments_at(times_s: Sequence[float], moments: Sequence[Moment]) -> tuple[Moment | None, ...]:
    """Return for each time the last of ``moments`` at or before it; None if all moments are later.

    Both arguments must be in order of time.
    """
    found: list[Moment | None] = []
    index = -1
    for at_s in times_s:
        while index + 1 < len(moments) and moments[index + 1].change.at_s <= at_s:
            index += 1
        found.append(moments[index] if index >= 0 else None)
    return tuple(found)


def _ms(at_s: float) -> int:
    return round(at_s * 1000)


try:
    import altair as alt
    import vl_convert  # noqa: F401 - what Altair writes PNG and pages with
except ImportError as error:
    raise JobFailed(
        f"The chart needs the extra 'charts' ({error}). Run: pip install 'pyspark-rocketmq[charts]'."
    ) from error


def write_page(history: LagHistory, file: Path) -> None:
    """Write the chart as an HTML page that needs no other file."""
    _chart(history).save(
        str(file),
        format="html",
        inline=True,
        embed_options={"renderer": "svg"},
        json_kwds={"cls": _JsonInScript},
    )


def write_png(history: LagHistory, file: Path) -> None:
    """Write the chart as a PNG, at twice the page's resolution."""
    _chart(history).save(str(file), format="png", scale_factor=2)


class _JsonInScript(json.JSONEncoder):
    """Encoder of JSON for a page's script: no name in it can end the script or open a comment."""

    def encode(self, o: Any) -> str:
        """Return JSON in which HTML's special characters are escaped."""
        text = super().encode(o)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chart(history: LagHistory) -> alt.VConcatChart:
    # By default, Altair refuses more than 5,000 records, to keep notebooks small.
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
    """Return explanations of the marks that the chart contains."""
    states = {record["state"] for record in _marked(records)}
    words = [
        ("triangle: queue suspended by its listener", SUSPENDED in states),
        ("circle: its next message is delivered again", RETRIED in states),
        ("dashed line: offsets reset", bool(history.resets_s)),
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
                title="queue (click to see only it)",
                # Keep the order of the records, in which 10 comes after 9.
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


def _marked(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records to mark: those of suspended or retried queues whose backlog is known."""
    return [record for record in records if record["state"] is not None and record["backlog"] is not None]


def _marks(records: list[dict[str, Any]]) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(_data(_marked(records)))
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
