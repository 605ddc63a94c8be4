"""Change data: what the change log of a database holds in a message, whichever program has written it.

Rule 1: pure. No I/O, no clock, no Spark: bytes in, values out.
Rule 2: values are exact. Only numbers of floating-point columns become floats, and a time never passes
through an unnamed zone.
Rule 3: a message that cannot be understood becomes a :class:`~pyspark_rocketmq.change_data.change.BadChange`,
never an exception and never a guess.
"""

from __future__ import annotations
