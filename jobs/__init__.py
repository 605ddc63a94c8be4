"""Jobs run through ``./spark-submit.sh JOB``."""

from __future__ import annotations
