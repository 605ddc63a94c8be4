from __future__ import annotations

import pytest

from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from tests.offsets.conformance import OffsetStoreConformance


class TestMemoryOffsetStore(OffsetStoreConformance):
    @pytest.fixture
    def store(self, clock):
        return MemoryOffsetStore("test", clock=clock)

    @pytest.fixture
    def again(self, store):
        return lambda: store
