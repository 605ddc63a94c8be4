from __future__ import annotations

from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool


def test_one_process_has_one_pool_per_settings() -> None:
    """A1: tasks of one worker share their connections."""
    signed = ConnectionSettings(access_key="reader", secret_key="secret")

    assert process_pool() is process_pool()
    assert process_pool(signed) is process_pool(ConnectionSettings(access_key="reader", secret_key="secret"))
    assert process_pool() is not process_pool(signed)
