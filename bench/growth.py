"""A micro-batch into a Delta sink as the table gets commits and files and the group gets queues,
in this work tree and in an earlier one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, Final, NamedTuple

import altair as alt
import vl_convert

from bench.delta_sink import ROWS
from bench.measure import Result, Spread, load_average
from bench.old_sinks import make_table

_TREES: Final = ("before", "now")
_SIZES: Final = {
    "commits": (10, 1_000, 10_000, 100_000),
    "files": (10, 1_000, 10_000, 200_000),
    "queues": (8, 64, 256, 1_024),
}
_FILES_EACH: Final = 2_000
_QUEUES: Final = 8
_ROWS_EACH: Final = 12
_WARM_UP: Final = 2
_ENOUGH_S: Final = 20
_LEAST: Final = 3
_METHOD: Final = """\
Micro-batches of {rows} rows a queue by `BatchRunner`: the job that writes the rows' files, the commit of data and that of offsets. The sink's table has been there before with
so many commits of a file each, or so many files in commits of {each:,}, and 8 queues; or it is new, and the batch has so many queues. {rounds} batches of each size
after {warm_up} for warming up, fewer where they take longer than {enough:g} s. *Before* is an earlier commit in a work tree of its own. One tree after the other, size by size."""


_PROGRAM: Final = """
import json, sys, time
from pathlib import Path
from pyspark import cloudpickle
from bench import delta_sink
from bench.session import bench_session
folder, queues, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
warm_up, least, rows_each, enough_s = map(int, sys.argv[4:])
names = vars(delta_sink)
# Workers get the module with this number of queues by value.
names["_QUEUES"] = queues
cloudpickle.register_pickle_by_value(delta_sink)
# Earlier trees call them so.
ours_of, batch_of = names.get("Ours") or names["_Ours"], names.get("Batch") or names["_Batch"]
took_s = []
with bench_session(folder / "spark") as spark:
    ours = ours_of(spark, folder / "table", folder / "offsets")
    for number in range(warm_up + rounds):
        started_s = time.perf_counter()
        ours.commit(batch_of(number, queues * rows_each))
        took_s.append(time.perf_counter() - started_s)
        if len(took_s) >= warm_up + least and sum(took_s[warm_up:]) > enough_s:
            break
print(json.dumps([1000 * one_s for one_s in took_s[warm_up:]]))
"""


class Point(NamedTuple):
    """Batches of one size in one tree."""

    axis: str
    size: int
    tree: str
    batch_ms: Spread


def run(*, other: Path, rounds: int = 12) -> Result:
    """Measure ``rounds`` batches of each size, here and in the work tree at ``other``."""
    before = load_average()
    trees = dict(zip(_TREES, (other.resolve(), Path(__file__).parents[1]), strict=True))
    commits = " ".join(f"*{name.title()}*: {commit_of(tree)}." for name, tree in trees.items())
    points = []
    for axis, sizes in _SIZES.items():
        for size in sizes:
            for name, tree in trees.items():
                point = Point(axis, size, name, _measured(tree, axis, size, rounds))
                print(f"  {axis} {size:>7,} {name:>6} {point.batch_ms.median:8,.1f} ms", flush=True)
                points.append(point)
    return Result(
        name="growth",
        title="Growth",
        method=_METHOD.format(
            rows=_ROWS_EACH,
            each=_FILES_EACH,
            rounds=rounds,
            warm_up=_WARM_UP,
            enough=_ENOUGH_S,
        ),
        about=commits,
        columns=("batch, ms", "min", "median", "max"),
        rows=tuple(
            (f"{point.size:,} {point.axis}, {point.tree}", *point.batch_ms.cells(",.0f")) for point in points
        ),
        targets=(),
        load=(before, load_average()),
        picture=drawn(points),
    )


def commit_of(tree: Path) -> str:
    """A work tree's commit by its short hash, with ``-dirty`` where files differ from it, and its subject."""
    hash_, subject = (
        subprocess.run(["git", "-C", str(tree), *command], capture_output=True, text=True, check=True).stdout
        for command in (
            ["describe", "--always", "--dirty", "--exclude=*"],
            ["log", "-1", "--format=%s"],
        )
    )
    return f"`{hash_.strip()}`, “{subject.strip()}”"


def _measured(tree: Path, axis: str, size: int, rounds: int) -> Spread:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        table = Path(folder) / "table"
        if axis == "commits":
            make_table(table, ROWS, commits=size, files_each=1)
        elif axis == "files":
            each = min(size, _FILES_EACH)
            make_table(table, ROWS, commits=size // each, files_each=each)
        queues = size if axis == "queues" else _QUEUES
        sizes = (queues, rounds, _WARM_UP, _LEAST, _ROWS_EACH, _ENOUGH_S)
        program = [sys.executable, "-W", "ignore", "-c", _PROGRAM, folder, *map(str, sizes)]
        paths = os.pathsep.join([str(tree / "connector"), str(tree)])
        done = subprocess.run(
            program,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return Spread.of(json.loads(done.stdout.splitlines()[-1]))


def drawn(points: list[Point]) -> str:
    """Draw a panel for each axis, all with the same time scale; sizes are logarithmic."""
    records: list[dict[str, Any]] = [
        {
            "axis": point.axis,
            "size": point.size,
            "tree": point.tree,
            "ms": point.batch_ms.median,
            "figure": f"{point.batch_ms.median:,.0f}" if point.size == _SIZES[point.axis][-1] else "",
        }
        for point in points
    ]
    latest = max(point.batch_ms.median for point in points)
    panels = [
        _panel([record for record in records if record["axis"] == axis], axis, latest) for axis in _SIZES
    ]
    chart = alt.vconcat(*panels, spacing=14, title="Median time of a micro-batch").configure(
        font="sans-serif", background="white"
    )
    text = vl_convert.vegalite_to_svg(chart.to_json())
    space = "http://www.w3.org/2000/svg"
    ET.register_namespace("", space)
    picture = ET.fromstring(text)
    title, desc = ET.Element(f"{{{space}}}title"), ET.Element(f"{{{space}}}desc")
    title.text = "Time of a micro-batch over commits, files and queues"
    desc.text = "; ".join(
        f"{point.size:,} {point.axis}, {point.tree}: {point.batch_ms.median:,.0f} ms" for point in points
    )
    picture[:0] = [title, desc]
    return ET.tostring(picture, encoding="unicode") + "\n"


def _panel(records: list[dict[str, Any]], axis: str, latest_ms: float) -> alt.LayerChart | alt.FacetChart:
    sizes = _SIZES[axis]
    is_first = axis == next(iter(_SIZES))
    base = alt.Chart(alt.InlineData(values=records)).encode(
        x=alt.X(
            "size:Q",
            title=f"{axis} of the group" if axis == "queues" else f"{axis} in the table",
            scale=alt.Scale(type="log", domain=[sizes[0], sizes[-1]], nice=False),
            # Mark only sizes that were measured.
            axis=alt.Axis(values=[*sizes], format=",", labelFlush=False, gridOpacity=0.5),
        ),
        y=alt.Y(
            "ms:Q",
            title="milliseconds",
            scale=alt.Scale(domain=[0, 1.08 * latest_ms], nice=True),
            axis=alt.Axis(tickCount=4, gridOpacity=0.5),
        ),
        color=alt.Color(
            "tree:N",
            sort=[*_TREES],
            scale=alt.Scale(domain=[*_TREES], range=["#b5542a", "#1f5fa8"]),
            legend=alt.Legend(orient="top", title=None) if is_first else None,
        ),
    )
    # Shapes in addition to colours; the ends are labelled with their figures.
    lines = base.mark_line(point=alt.OverlayMarkDef(size=45)).encode(
        strokeDash=alt.StrokeDash("tree:N", sort=[*_TREES], legend=None)
    )
    figures = [
        base.mark_text(align="left", dx=7, dy=dy, fontSize=11)
        .encode(text="figure:N")
        .transform_filter(f"datum.tree === '{tree}'")
        for tree, dy in zip(_TREES, (-6, 6), strict=True)
    ]
    return alt.layer(lines, *figures).properties(width=290, height=110)
