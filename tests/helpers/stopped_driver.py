"""A driver whose query never ends by itself: ``python -m tests.helpers.stopped_driver CONFIG_JSON``.

It exits without notice to Spark once a file ``exit`` is in its folder, or is killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.helpers.lock_watch import NotedCalls
from tests.helpers.spark_session import make_session
from tests.helpers.wait import wait_until


def noted_consumer(
    config: Mapping[str, Any], *, call_s: float, answer: object = ConsumeOrderlyStatus.SUCCESS
) -> PushConsumer:
    """Return a consumer whose calls are noted in ``folder``."""
    folder = Path(config["folder"])
    consumer = PushConsumer(
        consumer_group=config["group"],
        name_servers=config["nameServers"],
        offset_store=DeltaOffsetStore(str(folder / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        orderly_engine=config.get("engine", "direct"),
        consume_thread_max=1,
    )
    consumer.subscribe(config["topic"])
    consumer.register_message_listener(
        NotedCalls(folder, answer, call_s=call_s),
        orderly=isinstance(answer, ConsumeOrderlyStatus),
        output_schema="nothing int",
    )
    return consumer


def main(config: Mapping[str, Any]) -> None:
    """Consume for ever."""
    folder = Path(config["folder"])
    noted_consumer(config, call_s=3600.0).start(
        make_session(folder), checkpoint=str(folder / "checkpoint"), trigger=config["trigger"]
    )
    wait_until((folder / "exit").exists, 3600.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
