"""What the shop's services have in common; it knows none of them. Import the modules, nothing is re-exported here.

Plain values and ports, for a service's own `domain` and `service`:

    errors              ServiceError and its tree (refused / try again), MalformedMessageError
    message             OutgoingMessage, and the port MessagePublisher
    message_body        encode() and MessageBody: the JSON in messages
    subscription        Subscription: group, topic, tags, handler
    transactions        TransactionalPublisher.publish(message, local), check(); the ports TransactionalQueue,
                        TransactionRows
    idempotency         KeyClaim, the port IdempotencyKeys, InFlightKeys.holding(), fingerprint()
    inbox               the port Inbox, require_first(): a message that comes again changes nothing
    page_cursor         cursors of lists
    health              Health over named checks

Adapters to database, queue and sockets (`servicekit.adapters`):

    database            Database: reading() and writing() transactions on SQLite
    sqlite_connection   why a statement costs one hand-over to a thread, or none
    migrate             Migrations("orders:migrations").upgrade(database)
    sql_idempotency_keys  IdempotencyKeysTable(metadata, column), .of(connection)
    mq_connection       MqConnection: topics, producer, consumers; tried until the queue is there
    mq_publisher        MessagePublisher and TransactionalQueue over mqclient, in one
    mq_consumer         a Subscription over mqclient
    sql_transactions    SqlTransactionRows(table, connection), `transactions` of a unit of work
    sql_inbox           SqlInbox(table, connection), `inbox` of a unit of work
    http_server         HttpServer: takes its address first, serves until an event

HTTP (`servicekit.api`):

    application         build_api(...): routes, /health, problems, body limit, spans
    problem             ProblemType, the common kinds, documented(...)
    problem_handlers, body_limit, health_routes   what build_api installs
    idempotency_key     IdempotencyKey: the header as a dependency
    schemas             RequestModel, AnswerModel, Identifier, Currency, Limit, Cursor

The trio at a service's root:

    config              ServiceConfig, read_environment(), COMMON_PARSERS  -> config.py
    runner              Service, Composition, serve(), run_migrations()    -> app.py
    cleaning            cleaning(): old rows of inbox, transactions and keys go, in the background
    command_line        run_service()                                     -> __main__.py

For tests (`servicekit.testing`): RecordingPublisher (a queue in memory, with half messages, check-backs and deaths of
the process), deliver(), until().
"""
