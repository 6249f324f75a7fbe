"""How much one request, one broker and all brokers together may ask of a name server.

Every number that bounds what a peer can make the name server do, hold or remember stands here, with the reason for its
value behind it.
"""

TOPIC_COUNT_MAX = 100_000  # that one broker has routes for; a broker makes at most 40,000 unless configured otherwise
TOPICS_TOTAL_MAX = 250_000  # of all brokers, each topic counted for each broker; about 100 MB
TOPICS_PER_STEP = 4_096  # of one registration between two turns of the event loop; takes about 10 ms
BROKER_STREAMS_MAX = 1_024  # registrations that are open at the same time
LOST_BROKERS_MAX = 1_024  # remembered after they have left without unregistering, one for each stream
AWAY_BROKERS_MAX = 1_024  # names of which no process is left, one for each stream
AWAY_TOPICS_MAX = 100_000  # of all of these together; about 40 MB
AWAY_S_MAX = 600.0  # for which such a name is remembered; a start that has to recover a large store takes minutes
FIRST_REQUEST_S_MAX = 10.0  # for which a registration may be open without a request
TOPICS_PER_PAGE_MAX = 10_000  # of a list of topics, for clients that take pages; 1.3 MB
CALLS_MAX = 8_192  # of all connections at the same time, registrations included
CONNECTIONS_MAX = 10_000  # at the same time, and fewer when the process may not open as many
KEPT_DESCRIPTORS = 64  # for what is no connection
IDLE_CONNECTION_MS_MAX = 300_000  # without a call; clients ask every 30 s
NAME_CHARACTERS_MAX = 255  # of a topic, before its name is looked at
TEXT_CHARACTERS_MAX = 16_384  # of a name or an address, before it is looked at
