"""Monitoring of queries: metrics of each micro-batch, per queue, for logs, dashboards and Prometheus."""

from __future__ import annotations
