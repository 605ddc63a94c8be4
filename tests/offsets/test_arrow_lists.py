from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.offsets.delta_rows import to_numbers, to_strings
from tests.helpers.driver_process import ENVIRONMENT

_MICROS = pa.timestamp("us", "UTC")


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts_are_what_arrow_makes_of_them(values: list[str | None]) -> None:
    array = to_strings(values)

    array.validate(full=True)
    assert array.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("arrow_type", [pa.int32(), pa.int64(), _MICROS], ids=str)
@given(values=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)))
def test_numbers_are_what_arrow_makes_of_them(arrow_type: pa.DataType, values: list[int | None]) -> None:
    array = to_numbers(values, arrow_type)

    array.validate(full=True)
    assert array.equals(pa.array(values, arrow_type))


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        to_numbers([2**31], pa.int32())


def test_a_planner_s_store_loads_no_pandas(tmp_path: Path) -> None:
    """F2: half a second of a core before every query's first batch otherwise."""
    code = (
        "import sys\n"
        "from pyspark_rocketmq.model import MessageQueue\n"
        "from pyspark_rocketmq.offsets.delta import DeltaOffsetStore\n"
        f"store = DeltaOffsetStore({str(tmp_path / 'offsets')!r})\n"
        "store.claim('group', 'owner', {MessageQueue('topic', 'broker', 0): 7})\n"
        "assert len(store.read('group')) == 1\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True, timeout=240)
