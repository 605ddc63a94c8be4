"""The quick start as it is written, in a program whose environment nobody has activated."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_sim.cluster import SimCluster
from tests.docs.pages import blocks
from tests.helpers.unactivated import run_unactivated

pytestmark = [pytest.mark.spark, pytest.mark.driver, pytest.mark.sim]

CHOICE = 'os.environ["PYSPARK_PYTHON"] = sys.executable'


def page() -> list[str]:
    return [block.text for block in blocks("python") if block.page == "docs/quickstart.md"]


@pytest.mark.parametrize(
    "chooses",
    [
        pytest.param(True, id="as written"),
        pytest.param(False, id="without PYSPARK_PYTHON", marks=pytest.mark.long),
    ],
)
def test_the_quick_start_runs_where_no_environment_is_activated(chooses: bool, tmp_path: Path) -> None:
    """Spark starts ``python3`` for workers, whatever runs the program; register() gives the session ours."""
    program = "\n".join(page())
    assert CHOICE in program
    with SimCluster(brokers=1) as cluster:
        program = program.replace("127.0.0.1:9876", cluster.name_servers).replace("/lake", f"{tmp_path}/lake")

        printed = run_unactivated(program if chooses else program.replace(CHOICE, ""), tmp_path)

    assert printed.count("order-1") == 4, printed
