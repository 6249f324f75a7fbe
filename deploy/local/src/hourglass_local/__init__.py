"""Hourglass as local processes: the demonstration, `make up`, and clusters for tests with real processes."""

import os

# PostgreSQL is started as another user, for which Python forks. gRPC would wake up in the child, and dies there now and
# then before it has become the server. It reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
