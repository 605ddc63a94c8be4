"""What one task of the sink does: rows in, messages out, until all are acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.fault_tolerance import FaultTable
from pyspark_rocketmq.client.patient_lookup import PatientLookup
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.producer import Producer
from pyspark_rocketmq.client.sending import EncodedBatch
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.datasource.key_sample import KeySample, KeySampler
from pyspark_rocketmq.datasource.outbox import Outbox
from pyspark_rocketmq.datasource.places import Places
from pyspark_rocketmq.datasource.seen_routes import SeenRoutes
from pyspark_rocketmq.datasource.sink_batches import Gatherer, Parcel, compression_of
from pyspark_rocketmq.datasource.sink_rows import RowKeys, RowReader
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.write_options import WriteOptions


def send_rows(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    positions: Mapping[str, int],
    row_keys: RowKeys,
    seen: SeenRoutes | None = None,
) -> tuple[int, KeySample]:
    """Send all rows; the number of messages and, if they are checked, the sharding keys, when every one is acknowledged.

    Args:
        batches: The rows of the task, in order.
        options: Of the sink.
        positions: Of the columns.
        row_keys: Make the messages' UNIQ_KEYs.
        seen: Routes that all tasks of the write go by.

    Raises:
        RocketMQError: If a row is no message or cannot be sent; rows before it may be stored.
    """
    clock = SystemClock()
    with Producer(
        options.name_servers,
        options.producer_group,
        send_timeout_s=options.request_timeout_ms / 1000,
        # The outbox repeats, and keeps the order meanwhile.
        retry_times_when_send_async_failed=0,
        compress_over_bytes=options.compress_over_bytes,
        compression_type=compression_of(options),
        max_message_size=options.max_message_size,
        pool=process_pool(ConnectionSettings.of(options)),
        clock=clock,
        namespace=options.namespace or "",
    ) as producer:
        sampler = KeySampler()
        for topic, route in (seen or {}).items():
            producer.know(topic, route)
        lookup = PatientLookup(producer, clock, options.retry_timeout_ms / 1000)
        places = Places(
            lookup.queues,
            sampler if options.check_sharding_keys else None,
            lambda topic: producer.queues(topic, may_create=False, afresh=True),
        )
        outbox = Outbox(
            _Sends(producer).begin,
            clock,
            max_bytes=options.max_in_flight_bytes,
            send_timeout_s=options.request_timeout_ms / 1000,
            retry_timeout_s=options.retry_timeout_ms / 1000,
            require_send_ok=options.require_send_ok,
            faults=FaultTable(clock) if options.send_latency_fault_enable else None,
            instead_of=places.instead_of,
        )
        reader = RowReader(options=options, positions=positions, row_keys=row_keys)
        for parcel in _parcels(batches, reader, Gatherer(options), places):
            destination = parcel.destination
            outbox.put(parcel, places.any_of(destination) if isinstance(destination, str) else ())
        outbox.finish()
        return outbox.messages, sampler.sample()


def _parcels(
    batches: Iterator[pa.RecordBatch], reader: RowReader, gatherer: Gatherer, places: Places
) -> Iterator[Parcel]:
    first = 0
    for batch in batches:
        for row in reader.rows(batch, first):
            yield from gatherer.add(row, places.of(row))
        first += batch.num_rows
    yield from gatherer.rest()


@dataclass(frozen=True, slots=True)
class _Sends:
    """How the outbox begins a send."""

    producer: Producer

    def begin(self, parcel: Parcel, queue: MessageQueue, on_result: OnSend) -> None:
        if parcel.single is None:
            batch = EncodedBatch(queue=queue, body=b"".join(parcel.parts), sys_flag=parcel.sys_flag)
            self.producer.send_encoded(batch, on_result)
            return
        try:
            self.producer.send_async(parcel.single, on_result, queue=queue)
        except RocketMQError as error:
            on_result(error)
