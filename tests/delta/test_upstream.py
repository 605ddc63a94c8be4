"""Defects of delta-rs that this project works around: each test fails once delta-rs is mended."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_REPORTS = Path(__file__).parents[2] / "docs" / "upstream"


def test_two_optimizes_of_delta_rs_still_double_rows_as_reported() -> None:
    """The program of the report shows the defect; if not, ``delta/compaction.py`` can become smaller."""
    report = (_REPORTS / "delta-rs-two-optimizes.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", report, re.DOTALL)
    assert found is not None

    done = subprocess.run(
        [sys.executable, "-c", found[1]], check=False, capture_output=True, text=True, timeout=60
    )

    assert done.stdout.strip() == "rows written: [0, 1], rows read: [0, 0, 1, 1]", done.stderr
