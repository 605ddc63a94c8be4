"""What spark-submit.sh sends to a cluster's executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.zip_packages import zip_packages
from tests.packaging.checkout import ROOT


def test_the_archive_can_be_imported_from_as_it_is(tmp_path: Path) -> None:
    archive = zip_packages(ROOT, tmp_path)

    program = "import pyspark_rocketmq.cli.demo.orders, pyspark_rocketmq.format as f; print(f.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.strip() == f"{archive}/pyspark_rocketmq/format.py", done.stderr


def test_another_version_of_the_code_is_another_archive(tmp_path: Path) -> None:
    """An application that runs fetches its own when an executor comes."""
    module = tmp_path / "connector/pyspark_rocketmq/some.py"
    module.parent.mkdir(parents=True)
    module.write_text("VERSION = 1\n")
    first = zip_packages(tmp_path, tmp_path / "out")

    assert zip_packages(tmp_path, tmp_path / "out") == first
    module.write_text("VERSION = 2\n")
    assert zip_packages(tmp_path, tmp_path / "out") != first
    assert len(list((tmp_path / "out").iterdir())) == 2
