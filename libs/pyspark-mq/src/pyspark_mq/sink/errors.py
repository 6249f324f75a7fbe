"""What the sink raises beside OptionError; the root is that of the data source.

MqSourceError
 └─ SinkError
     ├─ SinkSchemaError       columns that cannot be written: the sentence says which are allowed
     ├─ RowError              a row that is no message: the sentence says which row and why
     ├─ SinkAwayError         no broker has taken the rows in time: run it again, what is stored is recognised
     ├─ SinkRefusedError      a broker refuses the rows for good
     └─ ReplayDiffersError    a replayed batch has other rows than before where some of them are stored already
"""

from __future__ import annotations

from pyspark_mq.errors import MqSourceError


class SinkError(MqSourceError):
    """The rows of a partition could not all be sent."""


class SinkSchemaError(SinkError):
    """Nothing was sent."""


class RowError(SinkError):
    """Rows before it may have been sent; a replay recognises them."""


class SinkAwayError(SinkError):
    """Asking again may help."""


class SinkRefusedError(SinkError):
    """Asking again will not help."""


class ReplayDiffersError(SinkError):
    """Going on would lose rows or send them twice, so the batch stops here."""
