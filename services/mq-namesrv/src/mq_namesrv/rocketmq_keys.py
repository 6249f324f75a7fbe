"""Keys of RocketMQ's NamesrvConfig, 4.x and 5.x, that people have in their files and that switch nothing here, each
with the reason. See `mqproto.config_source` for what happens with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqproto.config_source import NETTY_KEYS, IgnoredKey, ignored

IGNORED_KEYS: Mapping[str, IgnoredKey] = {
    **NETTY_KEYS,
    **ignored(
        "one event loop does the work of RocketMQ's thread pools and their queues",
        "clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity"
        " defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity",
    ),
    **ignored(
        "a name server keeps nothing on disk",
        "rocketmqHome kvConfigPath configStorePath productEnvName clusterTest configBlackList",
    ),
    **ignored("topics are always listed", "enableAllTopicList enableTopicList", allowed="true"),
    **ignored(
        "a topic is as its brokers have it",
        "orderMessageEnable returnOrderTopicConfigToBroker deleteTopicWithBrokerRegistration",
    ),
    **ignored("it answers from the first moment", "needWaitForService waitSecondsForService"),
    **ignored(
        "this version has no replication and no election",
        "supportActingMaster notifyMinBrokerIdChanged enableControllerInNamesrv",
        allowed="false",
    ),
}
