"""How much one request, one client and all clients together may ask of a broker.

Every number that bounds what a peer can make the broker do, hold or remember stands here, with its unit last in its
name and the reason for its value behind it. What makes a record valid is not here but in `mqproto`, because clients,
brokers and tools share it.
"""

# Topics and groups. The configuration may set other numbers (keys in brackets); together they stay below
# NAME_SERVER_TOPICS_MAX, because each group has up to two topics (retries and dead letters).
TOPIC_COUNT_MAX = 20_000  # [topicCountMax] that clients or operators can make; a topic has 4 queues, each with a file
GROUP_COUNT_MAX = 10_000  # [subscriptionGroupCountMax]
AUTO_CREATED_TOPICS_MAX = 1_000  # [autoCreatedTopicsPerClient] by one connection
AUTO_CREATED_GROUPS_MAX = 1_000  # [autoCreatedGroupsPerClient] by one connection
NAME_SERVER_TOPICS_MAX = 100_000  # of one broker; a name server leaves out the others (mq_namesrv, core/limits.py)
COUNTED_CLIENTS_MAX = 4_096  # connections of which it is remembered how much they made; the least recent is forgotten
