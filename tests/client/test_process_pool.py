from __future__ import annotations

import subprocess
import sys
import textwrap

from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings


def test_one_process_has_one_pool_per_settings() -> None:
    """A1: tasks of one worker share their connections."""
    signed = ConnectionSettings(access_key="reader", secret_key="secret")

    assert process_pool() is process_pool()
    assert process_pool(signed) is process_pool(ConnectionSettings(access_key="reader", secret_key="secret"))
    assert process_pool() is not process_pool(signed)


def test_a_forked_child_makes_its_own_pool_and_leaves_the_parents_connections_open() -> None:
    """A1: a Spark daemon forks its workers; threads do not survive a fork."""
    script = """
        import os
        from pyspark_rocketmq.client.process_pool import process_pool
        from pyspark_rocketmq.client.system_clock import SystemClock
        from pyspark_rocketmq.clock import Deadline
        from pyspark_rocketmq.wire.command import RemotingCommand
        from tests.helpers.scripted_server import ScriptedServer

        def ask():
            soon = Deadline.after(SystemClock(), 60.0)
            return process_pool().get(server.address, soon).request(RemotingCommand(code=30), soon).code

        with ScriptedServer() as server:
            parents = process_pool()
            assert ask() == 0
            child = os.fork()
            if child == 0:
                os._exit(0 if process_pool() is not parents and ask() == 0 else 1)
            assert os.waitpid(child, 0)[1] == 0, "the child failed"
            assert process_pool() is parents and ask() == 0
            assert server.connection_count == 2
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
