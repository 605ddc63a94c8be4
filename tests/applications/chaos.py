"""Three Spark applications of one group, in micro-batches and in real time, while everything around them
breaks: ``python -m tests.applications.chaos``.

Orders are produced all the while. At the end the sink must hold each message once, and each order's
steps in order. Another topic is sent to by sharding key, and a third one is deleted and made again. For
some events all applications stop first: an operator resets offsets, restores the sink or loses the
offset store meanwhile. The schedule is a function of the seed; what exactly the events meet
depends on the machine. Its clock begins when all applications are members. An application is disturbed only
once it is a member, and its later events are delayed accordingly.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Lock

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from tests.applications.event_threads import EventThreads
from tests.applications.fresh_topic import FRESH_TOPIC, FreshTopic
from tests.applications.operator import Operator
from tests.applications.order_flow import OrderFlow, not_as_sent, stored_orders
from tests.applications.running_application import (
    EVERY_SECOND,
    Group,
    Pace,
    RunningApplication,
    wait_patiently,
)
from tests.applications.schedule import (
    ALL_FAULTS,
    AWAY,
    FAULTS,
    GROUP,
    KILLS,
    NAME_SERVER,
    NETWORK,
    STORAGE,
    TOPIC,
    Event,
    Kind,
    counted,
    schedule,
    seconds_for,
    storage_schedule,
)
from tests.applications.server_faults import ServerFaults
from tests.applications.slot import Slot
from tests.applications.storage import Storage, storage_of
from tests.applications.tail_loss import TailLoss
from tests.applications.verdict import judge
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.relayed_cluster import RelayedCluster
from tests.real_broker import plain_remoting
from tests.real_broker.errors import HarnessError
from tests.real_broker.harness import RealCluster
from tests.real_broker.replica import replica

FORGETFUL_S = 8.0
"""Time after which brokers forget locks and members; RocketMQ's are 60 and 120 s."""
TIMING = MembershipTiming(
    heartbeat_s=2.0,
    rebalance_s=2.0,
    shortest_rebalance_s=0.5,
    lock_renewal_s=1.5,
    lock_valid_s=4.0,
    lock_retry_s=0.5,
    second_look_s=0.5,
)
"""RocketMQ's intervals in the same proportion."""

_SLOTS = ("one", "two", "three")
_KEYED_BROKER = "broker-b"
_QUEUES = 4
_PER_GENERATION = 20
"""Messages to each queue of the topic that is made again."""
_COMMIT_INTERVAL = "200 milliseconds"
_PACES = (
    EVERY_SECOND,
    Pace(EVERY_SECOND.trigger, _COMMIT_INTERVAL),
    # Short, so that many batches end and begin.
    Pace({"realTime": "5 seconds"}, _COMMIT_INTERVAL),
)
"""Paces of applications. One that follows another has another one, perhaps with the same checkpoint."""
_AWAY_S = 300.0
"""Time limit for all applications to go away, or to come back, when none is behind its schedule."""
_REGISTERED_S = 5.0
"""Time for brokers to register after a restart of the name server; real ones need 30 s."""
_PER_SECOND = 40.0
"""Messages to each of the two brokers."""
_DRAIN_S = 300.0
_GET_BROKER_CLUSTER_INFO = 106


@contextmanager
def cluster_of(kind: str, faults: Collection[str]) -> Iterator[ClusterUnderTest]:
    """Two brokers with a short memory, of which the first has a replica that stays when it is stopped:
    ``sim`` or ``real``. A broker that loses its tail has none: the replica's log would differ from then on.
    """
    has_replica = "lost-tail" not in faults
    if kind == "real":
        with RealCluster(brokers=2, forgetful_s=FORGETFUL_S) as real:
            if not has_replica:
                yield ClusterUnderTest(real, kind)
                return
            first = min(real.broker_addresses)

            def is_listed(address: str) -> bool:
                answer = plain_remoting.call(real.name_servers, _GET_BROKER_CLUSTER_INFO)
                return f'"{address}"' in answer.body.decode()

            with replica(real.name_servers, first, real.broker_addresses[first], is_listed):
                yield ClusterUnderTest(real, kind)
    else:
        settings = BrokerSettings(lock_max_live_s=FORGETFUL_S, channel_expired_s=FORGETFUL_S)
        with SimCluster(brokers=2, replicas=int(has_replica), settings=settings) as simulated:
            yield ClusterUnderTest(simulated, kind)


class Chaos:
    """One run."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        storage: Storage,
        folder: Path,
        seed: int,
        seconds: float,
        *,
        faults: Collection[str],
    ) -> None:
        self._cluster = cluster
        self._relayed = RelayedCluster(cluster)
        self._seconds = seconds
        self._problems: list[str] = []
        topic = cluster.create_topic("orders", queues=_QUEUES)
        self._keyed = cluster.create_topic("keyed", queues=_QUEUES, brokers=[_KEYED_BROKER])
        self._group = Group(
            name_servers=self._relayed.name_servers,
            topic=topic,
            group="chaos",
            folder=folder,
            timing=TIMING,
            more_topics=(self._keyed, FRESH_TOPIC),
            topics_change=True,
            on=storage,
        )
        self._is_over = False
        self._fresh = FreshTopic(cluster, self._group, lambda: self._is_over)
        self._operator = Operator(cluster, self._group, topic)
        self._lives = random.Random(seed)
        self._server_faults = ServerFaults(cluster, self._relayed, self._group.group, self._lives)
        self._tail_loss = TailLoss(cluster, self._group)
        paces = random.Random(seed).sample(_PACES, len(_PACES))
        self._slots = {
            # Each has all paces in turn, and each begins with another one.
            name: Slot(
                name,
                partial(RunningApplication, self._group),
                lambda: {row.owner_id for row in self._group.rows().values()},
                cycle(paces[number:] + paces[:number]),
                say=self._say,
                problem=self._problem,
            )
            for number, name in enumerate(_SLOTS)
        }
        self._events = schedule(
            seed,
            seconds,
            slots=_SLOTS,
            brokers=sorted(cluster.broker_addresses),
            forgetful_s=FORGETFUL_S,
            faults=faults,
        )
        if storage.keys is not None:
            self._events = sorted([*self._events, *storage_schedule(seed, seconds)])
        others = (*cluster.broker_addresses, NAME_SERVER, TOPIC, GROUP, NETWORK, STORAGE)
        self._threads = EventThreads(self._slots, others, do=self._do, say=self._say)
        self._reading = Lock()
        """Held while reading is forbidden, and while a tail is lost: what was lost must be read."""
        self._began_s = time.monotonic()

    def run(self) -> bool:
        """Run, and return whether nothing was wrong."""
        # Producers use no relays: they are not under test here.
        name_servers = self._cluster.name_servers
        with (
            OrderFlow(name_servers, self._group.topic, per_second=_PER_SECOND) as flow,
            OrderFlow(name_servers, self._keyed, per_second=_PER_SECOND / 4, is_keyed=True) as keyed,
        ):
            self._tail_loss.flow = flow
            for slot in self._slots.values():
                slot.join(same_name=False)
            for slot in self._slots.values():
                slot.await_member()
            self._began_s = time.monotonic()
            self._threads.begin()
            self._threads.submit(TOPIC, self._begin_fresh)
            self._make_events()
            for error in self._threads.errors():
                # Whatever failed, the rows can be judged.
                self._problem(repr(error))
            self._say("draining")
            lost = self._tail_loss.lost
            flow.finish()
            keyed.finish()
            stored, ends = stored_orders(self._cluster.broker_addresses, [*flow.queues, *keyed.queues])
            self._await_drained(ends)
            self._fresh.await_all()
        for slot in self._slots.values():
            slot.stop()
        self._problems += [
            f"not stored as sent: {each}"
            for each in not_as_sent({**flow.sent, **keyed.sent}, stored, lost)[:5]
        ]
        if (brokers := self._cluster.routed_brokers(self._keyed)) != {_KEYED_BROKER}:
            self._problems.append(f"topic {self._keyed} is on {sorted(brokers)}: its keys have moved")
        self._problems += self._fresh.problems()[:5]
        storage = self._group.storage
        verdict = judge(self._group.sink, stored, but=FRESH_TOPIC, lost=lost, storage_options=storage.options)
        self._sum_up(f"{verdict.text}\n{self._fresh.counts()}\n{self._tail_loss.counts()}")
        return verdict.is_clean and not self._problems

    def close(self) -> None:
        """End all processes."""
        self._is_over = True
        self._threads.close()
        for slot in self._slots.values():
            slot.close()
        self._operator.close()
        self._server_faults.close()
        self._relayed.close()

    def _make_events(self) -> None:
        for event in [*self._events, None]:
            until_s = self._seconds if event is None else event.at_s
            while (left_s := until_s - self._threads.now_s) > 0:
                time.sleep(min(left_s, 0.5))
                self._threads.look()
            if event is not None:
                self._threads.make(event)

    def _do(self, event: Event) -> None:
        if event.target == STORAGE:
            self._group.storage.do(event.kind)
        else:
            self._do_to_others(event)

    def _do_to_others(self, event: Event) -> None:
        try:
            if event.kind in ServerFaults.KINDS:
                self._server_faults.do(event.kind)
            elif event.target in self._cluster.broker_addresses:
                self._do_to_broker(event)
            else:
                self._do_to_group(event.kind)
        except (AssertionError, BrokenBarrierError, HarnessError, RocketMQError) as error:
            self._problem(f"{event.kind}: {error!r}")

    def _do_to_broker(self, event: Event) -> None:
        if event.kind is Kind.TAIL_LOST:
            with self._after_wait(event.target, self._reading):
                self._say(f"tail lost: {self._tail_loss.happen()}")
        elif event.kind is Kind.BROKER_STOP:
            with self._after_wait(event.target, self._fresh.may_crash(event.target)):
                self._cluster.stop_broker(event.target)
        else:
            self._cluster.start_broker(event.target)

    @contextmanager
    def _after_wait(self, target: str, entry: AbstractContextManager[object]) -> Iterator[None]:
        """Enter ``entry``, which may wait, while the target's later events are delayed."""
        with ExitStack() as stack:
            self._threads.wait(target, partial(stack.enter_context, entry))
            yield

    def _do_to_group(self, kind: Kind) -> None:
        if kind in AWAY:
            self._while_all_are_away(kind)
        elif kind is Kind.RESET_LIVE:
            self._say(f"reset: {self._operator.reset_back()}")
        elif kind is Kind.NAME_SERVER_RESTART:
            self._restart_name_server()
        elif kind is Kind.FORBID_READING:
            self._forbid_reading()
        elif kind is Kind.ALLOW_READING:
            try:
                self._operator.permit(_QUEUES, reading=True)
            finally:
                self._reading.release()
        else:
            self._fresh.next_generation(self._lives.randint(5, 2 * _PER_GENERATION))

    def _forbid_reading(self) -> None:
        self._threads.wait(TOPIC, self._reading.acquire)
        self._operator.permit(_QUEUES, reading=False)

    def _restart_name_server(self) -> None:
        self._cluster.restart_name_server()
        if self._cluster.kind == "sim":
            # Real brokers register again by themselves.
            time.sleep(_REGISTERED_S)
            self._cluster.register_brokers()

    def _while_all_are_away(self, kind: Kind) -> None:
        gone, done = Barrier(len(self._slots) + 1), Barrier(len(self._slots) + 1)
        # An application that is behind its schedule does first what was due before.
        within_s = _AWAY_S + self._threads.longest_delay_s
        for name, slot in self._slots.items():
            self._threads.submit(name, slot.away, gone, done, within_s)
        gone.wait(within_s)
        try:
            if kind is Kind.RESET_AWAY:
                what = self._operator.reset_back()
            elif kind is Kind.STORE_DELETED:
                what = self._operator.delete_store()
            else:
                with self._fresh.restorable():
                    what = self._operator.restore_sink(self._fresh.seen_version)
            self._say(f"{kind}: {what}")
        finally:
            done.wait(within_s)

    def _begin_fresh(self) -> None:
        try:
            self._fresh.send(_PER_GENERATION)
        except AssertionError as error:
            self._problem(str(error))

    def _await_drained(self, ends: Mapping[MessageQueue, int]) -> None:
        def behind() -> list[str]:
            self._threads.look()
            rows = self._group.rows()
            return [
                f"{queue} {rows[queue].next_offset if queue in rows else None} of {end}"
                for queue, end in ends.items()
                if queue not in rows or rows[queue].next_offset < end
            ]

        try:
            wait_patiently(lambda: not behind(), _DRAIN_S, reason="all being consumed")
        except AssertionError:
            self._problem(f"not consumed within {_DRAIN_S:g} s: {'; '.join(behind())}")

    def _problem(self, text: str) -> None:
        self._say(f"PROBLEM: {text}")
        self._problems.append(text)

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began_s:7.1f} s  {text}\n")
        sys.stdout.flush()

    def _sum_up(self, verdict: str) -> None:
        counts: Counter[Kind] = counted(self._events)
        events = ", ".join(f"{kind} {counts[kind]}" for kind in Kind if counts[kind])
        killed = sum(counts[kind] for kind in KILLS)
        sys.stdout.write(f"\nevents: {events}\nkills: {killed}\n{verdict}\nproblems: {len(self._problems)}\n")
        for problem in self._problems:
            sys.stdout.write(f"  - {problem.splitlines()[0]}\n")


def _fault_names(text: str) -> frozenset[str]:
    names = frozenset(text.split(","))
    if unknown := sorted(names - FAULTS.keys()):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: the faults are {', '.join(FAULTS)}")
    return names


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.applications.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="until draining begins")
    parser.add_argument(
        "--kills", type=int, help="go on until so many processes were killed, instead of --seconds"
    )
    parser.add_argument("--backend", choices=["sim", "real"], default="sim")
    parser.add_argument("--storage", choices=["local", "s3"], default="local", help="of sink and offsets")
    parser.add_argument("--seed", type=int, help="of the schedule; another one each time by default")
    parser.add_argument(
        "--faults",
        type=_fault_names,
        default=ALL_FAULTS,
        help=f"only these, separated by commas: {', '.join(FAULTS)}",
    )
    parser.add_argument("--keep", type=Path, help="folder for logs and tables, which is kept")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    seconds = chosen.seconds
    if chosen.kills is not None:
        seconds = seconds_for(
            seed,
            chosen.kills,
            slots=_SLOTS,
            brokers=("broker-a", "broker-b"),
            forgetful_s=FORGETFUL_S,
            faults=chosen.faults,
        )
    only = "" if chosen.faults == ALL_FAULTS else f", only {', '.join(sorted(chosen.faults))}"
    sys.stdout.write(f"seed {seed}, {seconds:g} s on {chosen.backend}, tables on {chosen.storage}{only}\n")
    is_clean = False
    try:
        with (
            cluster_of(chosen.backend, chosen.faults) as cluster,
            storage_of(chosen.storage, folder, seed) as storage,
        ):
            chaos = Chaos(cluster, storage, folder, seed, seconds, faults=chosen.faults)
            try:
                is_clean = chaos.run()
            finally:
                chaos.close()
    finally:
        if is_clean and chosen.keep is None:
            shutil.rmtree(folder)
        else:
            sys.stdout.write(f"logs and tables: {folder}\n")
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
