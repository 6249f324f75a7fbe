"""What the shop's services have in common; it knows none of them. Import the modules, nothing is re-exported here.

Plain values and ports, for a service's own `domain` and `service`:

    errors              ServiceError and its tree (refused / try again), MalformedMessageError
    message             OutgoingMessage, the port MessagePublisher; encode_body() and MessageBody: the JSON in messages;
                        Subscription: group, topic, tags, handler
    transactions        TransactionalPublisher.publish(message, local), check(); the ports TransactionalQueue,
                        TransactionRows
    idempotency         KeyClaim, the port IdempotencyKeys, InFlightKeys.holding(), fingerprint()
    inbox               the port Inbox, require_first(): a message that comes again changes nothing
    outbox              OutboxPublisher.publish(message, local): by the queue, or kept until it is back; OutboxRelay
    reconciler          Reconciler over checks: puts right what messages should have done; Finding, Sweep
    parked_transactions ParkedTransactionsCheck: the table of transactions decides what the queue has parked
    wake                Wake: a bell between who leaves work behind and the loop that does it
    page_cursor         cursors of lists
    identifiers         ID_PATTERN, is_identifier(): what ids look like
    auth                Caller, scopes, ROLES, Tokens(keys, clock).issue() and .verify()
    health              Health over named checks, each of which has its time

Adapters to database, queue and sockets (`servicekit.adapters`):

    database            Database(url): looking(), reading(), writing(), migrating(); on SQLite and on PostgreSQL
    sqlite_database, postgresql_database   the two, and what each of them promises; why a statement on SQLite costs one
                        hand-over to a thread, or none
    failed_units        why a unit in which something failed cannot be committed
    storage_errors      which errors of a driver mean "try again"
    text_file           the text of the variables that end with _FILE
    migrate             Migrations("orders:migrations").upgrade(database)
    sql_idempotency_keys  IdempotencyKeysTable(metadata, column), .of(connection)
    insert_together     InsertTogether(*tables): rows of several tables in one statement, where the database can
    mq_connection       MqConnection: topics, producer, consumers; tried until the queue is there
    mq_publisher        MessagePublisher and TransactionalQueue over mqclient, in one
    mq_admin            asking_queue(url, clock): an operator's questions to the queue; ParkedTransactions
    mq_consumer         a Subscription over mqclient
    sql_transactions    SqlTransactionRows(table, connection), `transactions` of a unit of work
    sql_inbox           SqlInbox(table, connection), `inbox` of a unit of work
    sql_units           SqlUnits(database, new_unit): units of work, looking, reading or writing
    http_client         http_client(url): asks another service, and loses no connection
    instrumentation     trace_statements(engine), trace_requests(client): spans, while they go anywhere
    gauges              StoredGauge: a value of the database as a metric, read every 10 s
    schema              new_metadata(), ROW_ID: names of constraints, numbers of rows
    sql_outbox          OutboxTable(metadata), .of(connection), `outbox` of a unit of work

HTTP (`servicekit.http`):

    application         build_api(...): routes, /health, /docs, callers, problems, limits, spans
    middleware          requires(scope, ...): the caller as a dependency; CallerOf; what a request passes
    limits              Admission, RequestCounter: how much is carried out, together and for each caller
    parameters          IfMatch, IfNoneMatch, IdempotencyKey: headers as dependencies; RequestModel, AnswerModel
    problem             ProblemType, the common kinds, documented(...)
    server              HttpServer: takes its address first, serves until an event

The trio at a service's root:

    config              ServiceConfig, read_environment(), COMMON_PARSERS  -> config.py
    runner              Service, Composition, serve(), run_migrations(), reconcile()    -> app.py
    cleaning            cleaning(): old rows of inbox, transactions and keys go, in the background
    command_line        run_service(): begins and ends telemetry too        -> __main__.py

On the command line: `python -m servicekit.token` makes tokens, and keys to sign them with.

For tests (`servicekit.testing`): RecordingPublisher (a queue in memory, with half messages, check-backs and deaths of
the process), deliver(), until(); `databases`, a plugin of pytest with the fixture `new_database_url`, by which a test
runs on both kinds of database; PostgresServer, a server that a test may pause and kill; service_process(), a service as
a process; differences(), table_names(), checks_and_indexes() of what migrations have made.
"""
