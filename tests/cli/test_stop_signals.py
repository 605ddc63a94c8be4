"""Signals to a job, in the process that consumes."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock, create_autospec

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from rich.console import Console

import pyspark_rocketmq.cli.consume
from pyspark_rocketmq.cli import running as stop_signals
from pyspark_rocketmq.cli.options import ConsumeSettings
from pyspark_rocketmq.cli.running import StopSignals
from pyspark_rocketmq.cli.settings import load_settings
from tests.helpers.fake_clock import FakeClock


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> StopSignals:
    """Of a session whose JVM gives none away."""

    def refuse(spark: SparkSession) -> None:
        raise Py4JError("Signal already used by VM or OS: SIGINT")

    monkeypatch.setattr(stop_signals, "_take_from_jvm", refuse)
    return StopSignals(create_autospec(SparkSession, instance=True))


def test_a_jvm_that_keeps_its_signals_is_logged_and_the_job_goes_on(
    signals: StopSignals, caplog: pytest.LogCaptureFixture
) -> None:
    """D7: such as one with ``-Xrs``."""
    [told] = caplog.get_records("setup")
    assert told.message.startswith("could not take SIGINT and SIGTERM over from the JVM")
    assert signals.received is None


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_a_second_one_interrupts(
    signals: StopSignals, first: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: whoever is in a hurry need not wait for the listener; one that comes by two ways is one."""
    clock = FakeClock()
    monkeypatch.setattr(stop_signals, "time", SimpleNamespace(monotonic=clock.monotonic_s))
    before = signal.getsignal(first)
    with signals:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), first)
        assert signals.received is first
        clock.advance(1.1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), first)

    assert signal.getsignal(first) is before


def test_a_signal_while_the_query_starts_stops_it_in_good_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B7: a start takes seconds."""

    def start(*_: object, **__: object) -> MagicMock:
        os.kill(os.getpid(), signal.SIGINT)
        return MagicMock()

    consumer = MagicMock()
    consumer.start.side_effect = start
    consumer.stop.return_value = True
    monkeypatch.setattr(
        pyspark_rocketmq.cli.consume, "spark_session", lambda *_, **__: nullcontext(MagicMock())
    )
    monkeypatch.setattr(pyspark_rocketmq.cli.consume, "_consumer", lambda _: consumer)
    monkeypatch.setattr("pyspark_rocketmq.QueryMonitor", MagicMock())
    monkeypatch.setattr(stop_signals, "_take_from_jvm", lambda _: None)
    given = {
        "nameServers": "h:1", "topic": "t", "consumerGroup": "g", "bodySchema": "a string", "sink": "/lake/s",
        "offsetStore": "/lake/o", "checkpoint": "/lake/c",
    }  # fmt: skip
    settings = load_settings(
        ConsumeSettings, "consume", None, [f"{key}={text}" for key, text in given.items()]
    )

    with pytest.raises(SystemExit) as ended:
        pyspark_rocketmq.cli.consume.consume(settings, Console(width=200))

    assert ended.value.code == 130
    assert capsys.readouterr().out.splitlines() == [
        "SIGINT: waiting for the running listener calls; a second signal ends the command immediately.",
        "Stopped: the finished work is committed, and the queues are given back.",
        "rows committed by this run: 0",
    ]
