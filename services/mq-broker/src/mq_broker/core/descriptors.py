"""What the descriptors of a broker's process are for.

Invariant: the shares together never exceed the limit, so that no number of connections, topics or queues can keep the
store from opening a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.core.limits import DESCRIPTORS_MIN, KEPT_DESCRIPTORS, OPEN_FILES_MAX, SLAVE_CONNECTIONS_MAX


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """Shares of one limit."""

    connections: int  # of clients and operators
    slave_connections: int
    open_files: int  # of the commit log and of the consume queues

    @classmethod
    def of(cls, limit: int) -> DescriptorBudget:
        """Divide a limit (RLIMIT_NOFILE): half of what is not kept back for files, the rest for connections.

        Raises ValueError when it is too small for a broker.
        """
        if limit < DESCRIPTORS_MIN:
            raise ValueError(
                f"this process may open {limit} files and connections; a broker needs {DESCRIPTORS_MIN} at least, "
                "and one for each client: raise it (ulimit -n, LimitNOFILE of systemd, --ulimit nofile of Docker)"
            )
        shared = limit - KEPT_DESCRIPTORS - SLAVE_CONNECTIONS_MAX
        open_files = min(shared // 2, OPEN_FILES_MAX)
        return cls(shared - open_files, SLAVE_CONNECTIONS_MAX, open_files)
