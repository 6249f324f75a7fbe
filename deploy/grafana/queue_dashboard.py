"""What the dashboard of the queue shows."""

from __future__ import annotations

from panels import GREEN, ORANGE, RED, Dashboard, Panel, Row, Variable, quantile, quantiles, rate

BROKER = 'hourglass_broker_name=~"$broker"'
GROUP = f'{BROKER}, messaging_consumer_group_name=~"$group"'
TOPIC, GROUP_LABEL = "messaging_destination_name", "messaging_consumer_group_name"
SENDS = 'messaging_operation_type="send"'
LEVEL = "hourglass_delay_level"
# A replica has what waits as well, and counts it: of a name it is counted once.
WAITING_BY_LEVEL = (
    f"sum by ({LEVEL}) (max by (hourglass_broker_name, {LEVEL}) (hourglass_delay_waiting{{{BROKER}}})) > 0"
)

QUEUE_NOW = Row(
    "Now",
    (
        Panel(
            "Masters",
            "Brokers that may be written.",
            (("sum(hourglass_replication_writable) or vector(0)", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Replicas in sync",
            "Replicas that have all that is acknowledged.",
            (("sum(hourglass_replication_slave_in_sync) or vector(0)", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Rejecting or fenced",
            "Brokers that take no messages because of their disk.",
            (
                (
                    "sum(clamp_max(hourglass_store_writes_refused + hourglass_store_fenced, 1)) or vector(0)",
                    "",
                ),
            ),
            kind="stat",
            width=4,
            height=4,
            steps=((1, RED),),
        ),
        Panel(
            "Messages behind",
            "What all groups together have not consumed.",
            (("sum(hourglass_consumer_lag)", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Dead letters",
            "Messages given up, over the range of the dashboard.",
            (("sum(increase(hourglass_dead_letters_total[$__range])) or vector(0)", ""),),
            kind="stat",
            width=4,
            height=4,
            steps=((1, RED),),
        ),
        Panel(
            "Disk used",
            "Of the fullest disk. 85 %: files go before their time; 90 %: writes are rejected.",
            (("max(hourglass_store_disk_used)", ""),),
            unit="percentunit",
            kind="stat",
            width=4,
            height=4,
            steps=((0.75, ORANGE), (0.85, RED)),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Messages in",
            "What producers have sent and brokers have stored, by topic.",
            ((rate("hourglass_broker_messages_in_total", by=TOPIC, where=BROKER), "{{messaging_destination_name}}"),),
            unit="mps",
        ),
        Panel(
            "Messages out",
            "What groups have pulled, by group and topic.",
            (
                (
                    rate("hourglass_broker_messages_out_total", by=f"{GROUP_LABEL}, {TOPIC}", where=GROUP),
                    "{{messaging_consumer_group_name}}: {{messaging_destination_name}}",
                ),
            ),
            unit="mps",
        ),
        Panel(
            "Bytes",
            "Of messages in and out, all topics.",
            (
                (rate("hourglass_broker_bytes_in_total", where=BROKER), "in"),
                (rate("hourglass_broker_bytes_out_total", where=BROKER), "out"),
            ),
            unit="Bps",
        ),
    ),
)

CONSUMING = Row(
    "Groups",
    (
        Panel(
            "Lag",
            "Messages that a group has not finished, by topic.",
            (
                (
                    f"sum by ({GROUP_LABEL}, {TOPIC}) (hourglass_consumer_lag{{{GROUP}}})",
                    "{{messaging_consumer_group_name}}: {{messaging_destination_name}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Listeners",
            "How long a call of a listener takes, p99.",
            (
                (
                    quantile(
                        0.99, "messaging_process_duration_seconds", by=GROUP_LABEL, where=f'{GROUP_LABEL}=~"$group"'
                    ),
                    "{{messaging_consumer_group_name}}",
                ),
            ),
            unit="s",
            width=6,
        ),
        Panel(
            "Dead letters a minute",
            "Messages whose tries have all failed.",
            (
                (
                    rate("hourglass_dead_letters_total", by=GROUP_LABEL, where=GROUP, per_minute=True),
                    "{{messaging_consumer_group_name}}",
                ),
            ),
            width=6,
        ),
    ),
)

WAITING = Row(
    "Waiting",
    (
        Panel(
            "Delayed messages that wait",
            "By delay level; -1 is the timer, 16 the payment window.",
            (
                (
                    WAITING_BY_LEVEL,
                    "level {{hourglass_delay_level}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Lateness",
            "Delivered minus due. Alert DelayedMessagesLate at 1 s.",
            quantiles("hourglass_delay_lateness_seconds", where=BROKER),
            unit="s",
            steps=((1, RED),),
        ),
        Panel(
            "Half messages",
            "Open transactions, those that wait for a person, and checks a minute.",
            (
                (f"sum(hourglass_transaction_halves{{{BROKER}}})", "open"),
                (f"sum(hourglass_transaction_parked{{{BROKER}}})", "parked"),
                (rate("hourglass_transaction_checks_total", where=BROKER, per_minute=True), "checks a minute"),
            ),
        ),
    ),
)

STORE = Row(
    "Disk and replication",
    (
        Panel(
            "Flush",
            "One sync of the commit log.",
            quantiles("hourglass_store_flush_duration_seconds", where=BROKER),
            unit="s",
            steps=((0.5, RED),),
        ),
        Panel(
            "Replication",
            "The longest wait for replicas in sync that a confirmation ends.",
            quantiles("hourglass_replication_ack_duration_seconds", where=BROKER),
            unit="s",
        ),
        Panel(
            "Replication lag",
            "What a replica does not have yet, as its master sees it.",
            (
                (
                    "max by (hourglass_broker_name, hourglass_replication_slave_id)"
                    f" (hourglass_replication_slave_lag_size_bytes{{{BROKER}}})",
                    "{{hourglass_broker_name}} replica {{hourglass_replication_slave_id}}",
                ),
            ),
            unit="bytes",
        ),
        Panel(
            "Store",
            "Bytes of the commit log, by process.",
            ((f"max by (instance) (hourglass_store_size_bytes{{{BROKER}}})", "{{instance}}"),),
            unit="bytes",
        ),
        Panel(
            "Disk",
            "Used share of the disk, by process.",
            ((f"max by (instance) (hourglass_store_disk_used{{{BROKER}}})", "{{instance}}"),),
            unit="percentunit",
            steps=((0.85, ORANGE), (0.9, RED)),
        ),
        Panel(
            "Roles",
            "1 for the role that a process has; a change of masters swaps two lines.",
            (
                (
                    f"max by (instance, hourglass_replication_role) (hourglass_replication_role{{{BROKER}}}) == 1",
                    "{{instance}} {{hourglass_replication_role}}",
                ),
            ),
            steps=((1, GREEN),),
        ),
    ),
)

CLIENTS = Row(
    "Clients and name servers",
    (
        Panel(
            "Clients",
            "Clients with a session, by process.",
            ((f"max by (instance) (hourglass_broker_clients{{{BROKER}}})", "{{instance}}"),),
            width=6,
        ),
        Panel(
            "Polls held",
            "Long polls that wait for messages.",
            ((f"max by (instance) (hourglass_broker_polls_held{{{BROKER}}})", "{{instance}}"),),
            width=6,
        ),
        Panel(
            "Sends",
            "How long a send takes, at the client, p50 and p99.",
            tuple(
                (
                    quantile(share, "messaging_client_operation_duration_seconds", by="job", where=SENDS),
                    f"{{{{job}}}} p{round(share * 100)}",
                )
                for share in (0.5, 0.99)
            ),
            unit="s",
            width=6,
        ),
        Panel(
            "Name servers",
            "Brokers and topics that each knows; the lines of all have to be equal.",
            (
                ("hourglass_namesrv_brokers", "{{instance}} brokers"),
                ("hourglass_namesrv_topics", "{{instance}} topics"),
                (
                    rate("hourglass_namesrv_route_queries_total", by="hourglass_namesrv_route_found"),
                    "queries a second, found: {{hourglass_namesrv_route_found}}",
                ),
            ),
            width=6,
        ),
    ),
)

QUEUE = Dashboard(
    "hourglass-queue",
    "The queue",
    "Brokers, groups, waiting messages, replication, name servers.",
    (QUEUE_NOW, TRAFFIC, CONSUMING, WAITING, STORE, CLIENTS),
    (
        Variable("broker", "Broker", "hourglass_store_log_end_bytes", "hourglass_broker_name"),
        Variable("group", "Group", "hourglass_consumer_lag", GROUP_LABEL),
    ),
)
