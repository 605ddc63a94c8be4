"""The tutorial of change data as a reader does it, each program in a process of its own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.transport import Closing
from pyspark_rocketmq.offsets.delta import _read_rows
from tests.docs.pages import ROOT, Block, blocks
from tests.helpers.driver_process import ENVIRONMENT, running
from tests.helpers.queue_ends import queue_ends
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.unactivated import without_maven
from tests.helpers.wait import wait_until

PAGE = "docs/change-data.md"
_SAVED = re.compile(r"Save this as `(\w+\.py)`")
_TIMEOUT_S = 240.0


class Reader(Closing):
    """Does what the page says, in a folder."""

    def __init__(self, folder: Path, cluster: SimCluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self._background = ExitStack()
        self._program: subprocess.Popen[bytes] | None = None
        self._printed = ""

    def save(self, name: str, text: str) -> None:
        """Save a program."""
        (self._folder / name).write_text(text, encoding="utf-8")

    def do(self, line: str) -> None:
        """Run a line of the shell's."""
        match shlex.split(line):
            case ["pyspark-rocketmq", "simulator", *_] | ["export", _]:
                pass
            case ["python", name, "$NAMESRV", "&"]:
                self._start(name)
            case ["python", name, *words]:
                arguments = [self._cluster.name_servers if word == "$NAMESRV" else word for word in words]
                if not words:
                    self._await_consumed()
                self._run([name, *arguments])
            case ["kill", "-9", "$!"]:
                assert self._program is not None
                self._program.kill()
                self._program.wait()
            case other:
                raise AssertionError(f"the test does not understand {other}")

    def check(self, text: str) -> None:
        """Compare what the last program printed."""
        assert self._printed == text

    def close(self) -> None:
        """End what runs in the background."""
        self._background.close()

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self._folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self._printed = done.stdout

    def _start(self, name: str) -> None:
        program = without_maven((self._folder / name).read_text(encoding="utf-8"))
        self._program = self._background.enter_context(
            running(
                [sys.executable, "-c", program, self._cluster.name_servers],
                self._folder / "program.log",
                folder=self._folder,
                environment=ENVIRONMENT | {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": QUICK_JVM},
            )
        )

    def _await_consumed(self) -> None:
        ends = queue_ends(self._cluster.name_servers, self._cluster.broker_addresses, "orders")
        offsets = self._folder / "lake" / "_offsets"

        def is_consumed() -> bool:
            assert self._program is not None
            assert self._program.poll() is None, (self._folder / "program.log").read_text()[-4000:]
            if not DeltaTable.is_deltatable(str(offsets)):
                return False
            rows = _read_rows(DeltaTable(offsets), "orders-table")
            return sum(row.next_offset for row in rows.values()) == sum(ends.values())

        wait_until(is_consumed, _TIMEOUT_S, reason="everything being consumed")


def _blocks() -> list[Block]:
    found = [block for kind in ("bash", "python", "text") for block in blocks(kind) if block.page == PAGE]
    return sorted(found, key=lambda block: block.line)


@pytest.mark.long
@pytest.mark.sim
@pytest.mark.driver
@pytest.mark.timeout(900)
def test_the_tutorial_of_change_data_goes_step_by_step(tmp_path: Path) -> None:
    """K1, K5: a reader sees what the page shows, after swaps, repetitions, a late change and a kill -9."""
    names = _SAVED.findall((ROOT / PAGE).read_text(encoding="utf-8"))
    shown = []
    with SimCluster(brokers=1) as cluster, Reader(tmp_path, cluster) as reader:
        for block in _blocks():
            match block.language:
                case "bash":
                    for line in block.text.splitlines():
                        reader.do(line)
                        if line == "python look.py":
                            shown.append(reader._printed)
                case "python":
                    reader.save(names.pop(0), block.text)
                case _:
                    reader.check(block.text)

    assert not names
    assert len(shown) == 3
    assert shown[1] == shown[0], "the late change did something"
