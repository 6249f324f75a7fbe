"""An admin without `await` (MISSION N11)."""

from __future__ import annotations

from mqclient.admin import Admin
from mqclient.sync.faces import Face, blocking, iterating, made_like


class SyncAdmin(Face[Admin]):
    """Every call of Admin."""

    @made_like(Admin)
    def __init__(self, inner: Admin) -> None:
        super().__init__(inner)

    away_brokers = blocking(Admin.away_brokers)
    backup_store = blocking(Admin.backup_store)
    broker_config = blocking(Admin.broker_config)
    broker_status = blocking(Admin.broker_status)
    broker_statuses = blocking(Admin.broker_statuses)
    cluster_list = blocking(Admin.cluster_list)
    consume_stats = blocking(Admin.consume_stats)
    consume_message_directly = blocking(Admin.consume_message_directly)
    consumer_connections = blocking(Admin.consumer_connections)
    consumer_running_info = blocking(Admin.consumer_running_info)
    dead_letter_marks = blocking(Admin.dead_letter_marks)
    dead_letters = iterating(Admin.dead_letters)
    decide_transaction = blocking(Admin.decide_transaction)
    delete_subscription_group = blocking(Admin.delete_subscription_group)
    delete_topic = blocking(Admin.delete_topic)
    edit_dead_letter = blocking(Admin.edit_dead_letter)
    explain = blocking(Admin.explain)
    ha_status = blocking(Admin.ha_status)
    list_transactions = blocking(Admin.list_transactions)
    preview_reset_by_time = blocking(Admin.preview_reset_by_time)
    pull = blocking(Admin.pull)
    query_message = blocking(Admin.query_message)
    query_message_by_unique_key = blocking(Admin.query_message_by_unique_key)
    queue_offsets = blocking(Admin.queue_offsets)
    read_queue = iterating(Admin.read_queue)
    recall_message = blocking(Admin.recall_message)
    replay_dead_letter = blocking(Admin.replay_dead_letter)
    reschedule_message = blocking(Admin.reschedule_message)
    reset_offset_by_queue = blocking(Admin.reset_offset_by_queue)
    reset_offset_by_time = blocking(Admin.reset_offset_by_time)
    search_offset = blocking(Admin.search_offset)
    subscription_groups = blocking(Admin.subscription_groups)
    switch_master = blocking(Admin.switch_master)
    topic_configs = blocking(Admin.topic_configs)
    topic_list = blocking(Admin.topic_list)
    topic_route = blocking(Admin.topic_route)
    topic_stats = blocking(Admin.topic_stats)
    transaction = blocking(Admin.transaction)
    update_subscription_group = blocking(Admin.update_subscription_group)
    update_topic = blocking(Admin.update_topic)
    update_topic_perm = blocking(Admin.update_topic_perm)
    view_message = blocking(Admin.view_message)
