"""The session of a command that nobody else has configured."""

from __future__ import annotations

from pyspark_rocketmq.cli.running import DELTA_SETTINGS, SETTINGS
from tests.docs.pages import ROOT


def test_its_settings_are_those_that_spark_submit_sh_gives() -> None:
    lines = (ROOT / "conf/spark-defaults.conf").read_text(encoding="utf-8").splitlines()

    assert dict(line.split() for line in lines if line and not line.startswith("#")) == (
        SETTINGS | DELTA_SETTINGS
    )
