from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_sim.__main__ import main
from pyspark_rocketmq.wire.route import decode_route
from tests.broker_sim.exchange import request
from tests.broker_sim.raw_client import RawClient
from tests.helpers.wait import wait_until

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 20


_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "connector"), str(_ROOT)])}
_PARENT = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-m", "broker_sim", "--exit-with-parent"], stdout=subprocess.PIPE, text=True
)
print(child.stdout.readline())
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "broker_sim", "--port", "0", "--brokers", "2", "--queues", "3"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=_ENVIRONMENT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_line_names_every_address_and_a_signal_ends_it_cleanly(
    process: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert process.stdout is not None
    addresses = json.loads(process.stdout.readline())
    assert set(addresses) == {"nameServers", "brokers"}
    assert list(addresses["brokers"]) == ["broker-a", "broker-b"]
    with RawClient(addresses["nameServers"]) as client:
        route = decode_route(client.call(request(105, {"topic": "TBW102"})).body)
        assert {each.master for each in route.brokers} == set(addresses["brokers"].values())
        assert {each.write_queue_nums for each in route.queues} == {3}
        process.send_signal(number)
        out, err = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, out, err) == (0, "", "")


def test_it_can_end_with_the_process_that_started_it() -> None:
    parent = subprocess.run(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT, check=True
    )
    address = json.loads(parent.stdout)["nameServers"]
    wait_until(lambda: _is_refused(address), timeout_s=_TIMEOUT_S)


def _is_refused(address: str) -> bool:
    try:
        with RawClient(address):
            return False
    except ConnectionRefusedError:
        return True


def test_an_impossible_number_of_brokers_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--brokers", "0"])
    assert ended.value.code == 2
    assert "1 to 26 brokers" in capsys.readouterr().err
