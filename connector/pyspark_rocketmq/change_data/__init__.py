"""Change data: reads the changes of a database from messages, whichever program has written them.

Rule 1: pure. No I/O, no clock, no Spark: bytes in, values out.
Rule 2: values are exact. Only numbers of floating-point columns become floats, and no time is converted in
a time zone that nobody has named.
Rule 3: a message that cannot be understood becomes a :class:`~pyspark_rocketmq.change_data.change.BadChange`,
never an exception and never a guess.
"""

from __future__ import annotations
