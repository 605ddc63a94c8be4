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
from pyspark_rocketmq.client.pool import AclSigner
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.requests.topics import decode_route
from tests.broker_sim.exchange import request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.driver_process import ENVIRONMENT
from tests.helpers.wait import PATIENCE_S, wait_until

_TIMEOUT_S = PATIENCE_S
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
        env=ENVIRONMENT,
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


@pytest.fixture
def controlled() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "broker_sim", "--control", "--replicas", "1", "--slave-reads"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _tell(process: subprocess.Popen[str], **command: object) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()
    answer: dict[str, object] = json.loads(process.stdout.readline())
    return answer


def test_another_process_scripts_faults_and_switches_brokers(controlled: subprocess.Popen[str]) -> None:
    assert controlled.stdout is not None
    addresses = json.loads(controlled.stdout.readline())
    broker, replica = addresses["brokers"]["broker-a"], addresses["replicas"]["broker-a"]["1"]
    done = {"ok": True}
    assert _tell(controlled, do="fault", name="answer-code", on=310, response_code=2, times=2) == done
    assert _tell(controlled, do="pending-faults") == {"ok": True, "pending": 2}
    with RawClient(broker) as client:
        assert client.call(send()).code == ResponseCode.SYSTEM_BUSY
        assert _tell(controlled, do="clear-faults") == done
        assert client.call(send()).code == ResponseCode.SUCCESS
    assert _tell(controlled, do="replica-lag", broker="broker-a", messages=1) == done
    assert _tell(controlled, do="refuse-connections", broker="broker-a") == done
    assert _is_refused(broker)
    assert _tell(controlled, do="accept-connections", broker="broker-a") == done
    assert not _is_refused(broker)
    assert _tell(controlled, do="stop-broker", broker="broker-a") == done
    assert _tell(controlled, do="start-broker", broker="broker-a") == done
    assert _tell(controlled, do="promote-replica", broker="broker-a") == {"ok": True, "address": replica}
    assert _is_refused(broker)


def test_a_command_that_makes_no_sense_is_explained_and_the_next_is_taken(
    controlled: subprocess.Popen[str],
) -> None:
    assert controlled.stdout is not None
    assert controlled.stdin is not None
    controlled.stdout.readline()
    controlled.stdin.write("{no json\n[]\n")
    for expected in ("Expecting property name", "is a JSON object"):
        controlled.stdin.flush()
        answer = json.loads(controlled.stdout.readline())
        assert answer["ok"] is False
        assert expected in answer["error"]
    assert "the commands are fault" in str(_tell(controlled, do="dance")["error"])
    assert "no fault 'dance'" in str(_tell(controlled, do="fault", name="dance", on=10)["error"])
    assert "'broker'" in str(_tell(controlled, do="stop-broker")["error"])
    assert "brokers are broker-a" in str(_tell(controlled, do="stop-broker", broker="broker-z")["error"])
    assert _tell(controlled, do="pending-faults") == {"ok": True, "pending": 0}


def test_a_user_of_a_file_must_sign(tmp_path: Path) -> None:
    """A5: secrets are in no process list."""
    users = tmp_path / "users"
    users.write_text("bob:87654321\n\n ann:12345678\n")
    command = [sys.executable, "-m", "broker_sim", "--users", str(users)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["brokers"]["broker-a"]
            with RawClient(address) as client:
                assert client.call(send()).code == ResponseCode.NO_PERMISSION
                assert client.call(AclSigner("ann", "12345678").sign(send())).code == ResponseCode.SUCCESS
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--users", "HERE/users"], "users is not ACCESS:SECRET."),
        (["--users", "HERE/nobody"], "There is no user in"),
        (["--users", "HERE/none"], "No such file"),
        (["--tls-certificate", "/no/such.pem"], "No such file"),
    ],
)
def test_what_cannot_be_used_is_explained(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "users").write_text("ann:1\nbob\n")
    (tmp_path / "nobody").touch()
    with pytest.raises(SystemExit):
        main([argument.replace("HERE", str(tmp_path)) for argument in arguments])
    assert problem in capsys.readouterr().err


def test_it_can_be_configured_to_take_conditions() -> None:
    """enablePropertyFilter, without which a broker refuses SQL92 subscriptions."""
    for arguments, told in (([], "false"), (["--property-filter"], "true")):
        command = [sys.executable, "-m", "broker_sim", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
            try:
                assert process.stdout is not None
                brokers = json.loads(process.stdout.readline())["brokers"]
                with RawClient(brokers["broker-a"]) as client:
                    config = client.call(request(RequestCode.GET_BROKER_CONFIG)).body.decode()
            finally:
                process.kill()
        assert f"enablePropertyFilter={told}" in config.splitlines()


def test_it_can_end_with_the_process_that_started_it() -> None:
    parent = subprocess.run(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, check=True
    )
    address = json.loads(parent.stdout)["nameServers"]
    wait_until(lambda: _is_refused(address), timeout_s=_TIMEOUT_S)


def test_it_ends_at_once_if_the_process_that_started_it_has_ended_before() -> None:
    """While it began, on a busy machine, it got another parent."""
    arguments = ["--exit-with-parent", str(os.getppid())]
    command = [sys.executable, "-m", "broker_sim", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=False, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0


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
