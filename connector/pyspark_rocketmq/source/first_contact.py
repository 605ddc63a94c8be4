"""Waits for the cluster when a query begins: briefly for a new query, longer for one that worked before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Final, TypeVar

from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import NameServerNotReady, RocketMQError, TopicAway, TopicNotFound
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.retry import UNTIL_DEADLINE, RetryPolicy, call_with_retry
from pyspark_rocketmq.source.cluster_view import ClusterView, Snapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_CONTACT: Final = RetryPolicy(attempts=3, first_pause_s=0.5, max_pause_s=0.5)
"""Retries of the first snapshot: a wrong address must soon end in an error, not in an idle query."""


def at_first_contact(
    action: Callable[[], T],
    patience: Deadline,
    sleep: Callable[[float], object],
    *,
    has_worked: Callable[[], bool] = lambda: False,
) -> T:
    """Return the result of ``action``; if its error may pass, try ``action`` again.

    Usually ``action`` is tried three times, so that a wrong address soon ends the query. It is tried until
    ``patience`` is over in two cases:

    * if a name server is not ready, or brokers have yet to register at it;
    * if name servers or brokers are away or do not work now, and the query ``has_worked`` before.

    An error that cannot pass is raised immediately, and so is the error of a topic that does not exist.

    Raises:
        RocketMQError: The error of the last try.
    """
    try:
        return call_with_retry(action, _FIRST_CONTACT, patience, sleep, is_tried_again=_may_pass_later)
    except RocketMQError as error:
        is_known = _may_pass_later(error) and not patience.has_passed and has_worked()
        if not is_known and not isinstance(error, (TopicAway, NameServerNotReady)):
            raise
        why = (
            "the cluster is down or does not work now; this query has read from the cluster before, so it is "
            if is_known
            else ""
        )
        logger.warning("%swaiting up to %.0f s (retryTimeoutMs): %s", why, patience.remaining_s(), error)
    is_tried_again = _may_pass_later if is_known else attrgetter("retryable")
    return call_with_retry(action, UNTIL_DEADLINE, patience, sleep, is_tried_again=is_tried_again)


def _may_pass_later(error: RocketMQError) -> bool:
    """Return whether to try again; False if a topic does not exist, since its name is most likely wrong."""
    return error.retryable or (error.passes_later and not isinstance(error, TopicNotFound))


def check_topics(options: ReadOptions, had_it: Callable[[str], Collection[str]]) -> None:
    """Check that the topics of a query exist, before it creates anything.

    A query that has read one of the topics before waits up to ``retryTimeoutMs`` for servers that are away; a
    new query tries three times. A query that begins in one of the topics, but not with the first messages,
    also waits while brokers may still register at a name server that has just started: the queues of a broker
    that comes later would be read from their first messages.

    Args:
        options: The options of the query.
        had_it: Function that returns the brokers from which the query is known to have read a topic.

    Raises:
        TopicNotFound: If there is a topic that no living broker has.
        NameServerNotReady: If the name server has just started: other brokers may still register.
        RocketMQError: If no name server or no broker at all answers, or if a server refuses for good.
    """
    clock = SystemClock()
    view = ClusterView(options, process_pool(ConnectionSettings.of(options)), clock, had_it=had_it)

    def look() -> Snapshot:
        found = view.snapshot()
        # Only now look into the offset store, which may not answer.
        if found.still_registering is not None and not all(map(had_it, options.subscribed())):
            raise found.still_registering
        return found

    at_first_contact(
        look,
        Deadline.after(clock, options.retry_timeout_ms / 1000),
        time.sleep,
        has_worked=lambda: any(had_it(topic) for topic in options.subscribed()),
    )
