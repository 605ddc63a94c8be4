"""Sockets, threads and deadlines: blocking and asynchronous calls to name servers and brokers."""

from __future__ import annotations
