"""A process ends in good order although its threads use delta-rs and Arrow."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pyspark_rocketmq import process_end
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.process_end import native_call
from tests.helpers.wait import PATIENCE_S

_PROGRAM = """
import logging, sys, threading
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore

logging.disable()
path, by_link = sys.argv[1], sys.argv[2] == "True"
LogFiles.takes_commits = by_link
queues = {MessageQueue("topic", "broker", 0): 0}
store = DeltaOffsetStore(path)
store.claim("group", "owner", queues)
at_work = threading.Semaphore(0)

def work(name):
    number = 0
    try:
        while True:
            number += 1
            DeltaOffsetStore(path).read("group")
            store.claim("group", f"{name} {number}", queues)
            at_work.release()
    except RocketMQError as error:
        assert "process is ending" in str(error), error

for name in ("one", "two", "three"):
    threading.Thread(target=work, args=(name,), daemon=True).start()
for _ in range(6):
    at_work.acquire()
"""


@pytest.mark.parametrize("by_link", [True, False], ids=["by a link", "by delta-rs"])
def test_a_process_ends_whose_daemon_threads_use_the_offset_store(tmp_path: Path, by_link: bool) -> None:
    """A thread that came back from delta-rs while Python shut down has crashed the process."""
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "offsets"), str(by_link)]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False, text=True)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_only_the_main_thread_and_calls_under_way_go_on_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    monkeypatch.setattr(process_end, "process_ends", ends)
    begun = threading.Event()
    seen: list[str] = []

    def work() -> None:
        with native_call("the outer call"):
            begun.set()
            ends.wait(PATIENCE_S)
            with native_call("an inner call"):
                seen.append("inner")
        try:
            with native_call("another call"):
                seen.append("another")
        except RocketMQError as error:
            seen.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(PATIENCE_S)
    ends.set()
    thread.join(PATIENCE_S)

    assert seen == ["inner", "This Python process is ending, so this was not begun: another call."]
    with native_call("a call of the main thread"):
        pass
