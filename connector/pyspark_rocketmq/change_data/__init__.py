"""Change data: reads the changes of a database from messages, whichever program has written them.

The form of one program's messages, such as Canal's, is an *envelope*; so is the object that reads them.

Rule 1: pure. No I/O, no clock, no Spark: bytes in, values out.
Rule 2: values are exact. Only numbers of floating-point columns become floats, and a time is only converted
from a time zone that a message or the user has named.
Rule 3: a message that cannot be understood becomes a :class:`~pyspark_rocketmq.change_data.change.BadChange`,
never an exception and never a guess.
"""

from __future__ import annotations
