from __future__ import annotations

import pytest

from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from tests.helpers.fake_clock import FakeClock
from tests.offsets.conformance import OffsetStoreConformance


class TestMemoryOffsetStore(OffsetStoreConformance):
    @pytest.fixture
    def store(self, clock: FakeClock):
        return MemoryOffsetStore("test", clock=clock)

    @pytest.fixture
    def again(self, store: MemoryOffsetStore):
        return lambda: store
