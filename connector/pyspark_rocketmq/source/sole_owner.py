"""An instance of a broadcasting group has one query at a time: two would share its progress.

Brokers know who is alive: a member that ended, however it did, is forgotten with its connection.  Members of
one instance name on one machine have one client id; on two machines they are told by the rows of the offset
store they share.  Two that start in the same moment are found out later, by the epoch of their rows
(``GroupProgress``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from pyspark_rocketmq.client.cluster import Cluster
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import BrokerError, OffsetError, RocketMQError
from pyspark_rocketmq.group.join import offset_key
from pyspark_rocketmq.group.member import CALL_TIMEOUT_S
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options.read import ReadOptions

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 30.0
"""How long a query that is being stopped may take to leave the group."""
_PAUSE_S: Final = 0.5


def await_sole_owner(
    name: str,
    owners: Collection[str],
    members: Callable[[], Collection[str]],
    clock: Clock,
    sleep: Callable[[float], None],
) -> None:
    """Wait until none of ``owners`` of the progress ``name`` is among the living members.

    Raises:
        OffsetError: If one still is after half a minute.
    """
    deadline = Deadline.after(clock, _PATIENCE_S)
    is_told = False
    while alive := sorted(set(owners).intersection(members())):
        if deadline.has_passed:
            raise second_owner(name, alive[0])
        if not is_told:
            logger.warning(
                "waiting for another query of this instance to end progress=%s member=%s",
                name,
                peer_text(alive[0]),
            )
            is_told = True
        sleep(_PAUSE_S)


def second_owner(name: str, member: str) -> OffsetError:
    """Why a query must not consume under the progress ``name``."""
    return OffsetError(
        f"Progress {name} of a broadcasting group is another query's: member {peer_text(member)} is alive "
        "and consumes under the same instanceName. Both would share one progress, and each would miss "
        "messages that only the other gets. Nothing was lost. Stop one of them, or give each query an "
        "instanceName of its own, on each machine too. Of a machine that was lost, brokers forget the "
        "members within two minutes: start again then."
    )


def possible_owners(options: ReadOptions, member_id: str, store: OffsetStore) -> frozenset[str]:
    """The client ids under which the progress may be in use: one's own, and who claimed its rows."""
    try:
        rows = store.read(offset_key(options)).values()
    except RocketMQError as error:
        # Planning reads the store again, and waits for it.
        logger.warning("offset store not read for owners progress=%s: %s", offset_key(options), error)
        return frozenset({member_id})
    return frozenset({member_id, *(row.owner for row in rows if row.owner)})


def living_members(options: ReadOptions, pool: ChannelPool, clock: Clock) -> frozenset[str]:
    """The client ids of the group, of every broker that answers."""
    assert options.consumer_group is not None
    cluster = Cluster.of(options, clock, pool=pool, at_most_s=CALL_TIMEOUT_S)
    brokers = cluster.brokers()
    found: set[str] = set()
    try:
        routes = cluster.routes(options).look(Deadline.after(clock, cluster.timeout_s))
    except RocketMQError as error:
        logger.warning("members not asked for group=%s: %s", options.consumer_group, error)
        return frozenset()
    for address in routes.masters.values():
        try:
            found.update(brokers.consumer_list(address, options.consumer_group))
        except BrokerError:
            """It knows no member of the group."""
        except RocketMQError as error:
            logger.warning("members not told group=%s broker=%s: %s", options.consumer_group, address, error)
    return frozenset(found)
