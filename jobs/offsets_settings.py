"""The options of the jobs ``offsets …``."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.option_set import like_source
from jobs.settings import GROUP_DOC, OFFSET_STORE_DOC, ClusterAccess


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsShowSettings(ClusterAccess):
    """Options of job ``offsets show``."""

    offset_store: str = like_source("offset_store", doc=OFFSET_STORE_DOC)
    consumer_group: str | None = like_source(
        "consumer_group", default=None, default_text="all groups", doc="The consumer group to show."
    )
    name_servers: tuple[str, ...] | None = like_source(
        "name_servers", default=None, default_text="none: without the broker's bounds and the lag"
    )
    request_timeout_ms: int = like_source("request_timeout_ms", default=5_000)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsHistorySettings(ClusterAccess):
    """Options of jobs ``offsets history`` and ``offsets diff``; those of the cluster so that one ``--conf`` does for all jobs ``offsets …``."""

    offset_store: str = like_source("offset_store", doc=OFFSET_STORE_DOC)
    consumer_group: str = like_source("consumer_group", doc=GROUP_DOC)
    name_servers: tuple[str, ...] | None = like_source(
        "name_servers", default=None, default_text="none", doc="Not asked: the store says it all."
    )
    request_timeout_ms: int = like_source("request_timeout_ms", default=5_000)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsChangeSettings(ClusterAccess):
    """Options of jobs ``offsets reset``, ``offsets skip``, ``offsets clone`` and ``offsets accept-gap``."""

    offset_store: str = like_source("offset_store", doc=OFFSET_STORE_DOC)
    consumer_group: str = like_source("consumer_group", doc="The consumer group to move.")
    name_servers: tuple[str, ...] | None = like_source(
        "name_servers", default=None, default_text="none: without bounds, times, and who is consuming"
    )
    request_timeout_ms: int = like_source("request_timeout_ms", default=5_000)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffsetsLagSettings(ClusterAccess):
    """Options of job ``offsets lag``."""

    offset_store: str = like_source("offset_store", doc=OFFSET_STORE_DOC)
    name_servers: tuple[str, ...] = like_source("name_servers")
    consumer_group: str | None = like_source(
        "consumer_group", default=None, default_text="all groups", doc="The consumer group to look at."
    )
    request_timeout_ms: int = like_source(
        "request_timeout_ms",
        default=1_500,
        doc="How long one request to a name server, a broker or a member of the group may take; who does not answer "
        "in that time leaves empty columns.",
    )
