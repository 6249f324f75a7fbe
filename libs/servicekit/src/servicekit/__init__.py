"""The common parts of the shop's services, none of which it imports. Import the modules, nothing is re-exported here.

Plain values, for every layer of a service; of the rest only `config` knows anything, the limits of `http`:

    errors        ServiceError and its tree (rejected / try again), MalformedMessageError
    message       OutgoingMessage, the port MessagePublisher; encode_body() and MessageBody: the JSON in messages;
                  Subscription: group, topic, tags, handler
    auth          Caller, scopes, ROLES, Tokens(keys, clock).issue() and .verify()
    identifiers   is_identifier(): what ids look like; cursors of lists
    config        ServiceConfig, read_environment(), COMMON_PARSERS
    background    Background: work beside the requests; WakeUp: wakes the loop that does it;
                  StoredGauge: a value of the database as a metric, read every 10 s
    monitoring    Health over named checks, each of which has its time; trace_statements(engine), trace_requests(client)

Three packages, each of which says in its own text what it is for and what it may import:

    http          build_api(...), the middleware of a request, limits, headers, problems, the server
    sql           Database(url), units of work, transactions, inbox, outbox, idempotency keys, counters, migrations
    process       Service and run_service(), MqConnection, Reconciler

On the command line: `python -m servicekit.token` makes tokens, and keys to sign them with.

For tests (`servicekit.testing`): `publisher`, a queue in memory, with half messages, checks and deaths of the process;
`databases`, a plugin of pytest with the fixture `new_database_url`, by which a test runs on both kinds of database;
`postgresql`, a server that a test may pause and kill; `service_process`, a service as a process; `migrations`, what
migrations have made; `interleavings`, `openapi_faults`.
"""
