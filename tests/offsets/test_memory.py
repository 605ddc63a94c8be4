from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from tests.helpers.fake_clock import FakeClock
from tests.offsets.conformance import OffsetStoreConformance


class TestMemoryOffsetStore(OffsetStoreConformance):
    @pytest.fixture
    def store(self, clock: FakeClock) -> MemoryOffsetStore:
        return MemoryOffsetStore("test", clock=clock)

    @pytest.fixture
    def again(self, store: MemoryOffsetStore) -> Callable[[], MemoryOffsetStore]:
        return lambda: store
