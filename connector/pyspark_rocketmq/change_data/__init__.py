"""Change data: reads the changes of a database from messages, whichever program has written them.

An *envelope* is the form of one program's messages, for example Canal's. The object that reads messages of
this form is called an envelope, too.

Rule 1: pure. No I/O, no clock, no Spark: bytes in, values out.
Rule 2: values are exact. Only numbers of floating-point columns become floats. A time is converted only from
a time zone that a message or the user has named.
Rule 3: a message that cannot be understood becomes a :class:`~pyspark_rocketmq.change_data.change.BadChange`,
never an exception and never a guess.
"""

from __future__ import annotations
