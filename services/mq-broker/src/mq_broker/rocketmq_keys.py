"""Keys of RocketMQ's BrokerConfig and MessageStoreConfig, 4.x and 5.x, that people have in their files and that switch
nothing here, each with the reason. See `mqproto.config_source` for what happens with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqproto.config_source import NETTY_KEYS, IgnoredKey, ignored

IGNORED_KEYS: Mapping[str, IgnoredKey] = {
    **NETTY_KEYS,
    **ignored(
        "one event loop does the work of RocketMQ's thread pools and their queues",
        "sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums"
        " litePullMessageThreadPoolNums ackMessageThreadPoolNums processReplyMessageThreadPoolNums"
        " queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums"
        " consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums recoverThreadPoolNums"
        " sendThreadPoolQueueCapacity putThreadPoolQueueCapacity pullThreadPoolQueueCapacity"
        " litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity replyThreadPoolQueueCapacity"
        " queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity"
        " heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity"
        " brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInLitePullQueue"
        " waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue useReentrantLockWhenPutMessage"
        " putMessageTimeout maxAsyncPutMessageRequests asyncSendEnable topicQueueLockNum",
    ),
    **ignored(
        "files are written and read by pwrite and pread, not mapped",
        "transientStorePoolEnable transientStorePoolSize fastFailIfNoBufferInStorePool warmMapedFileEnable"
        " flushLeastPagesWhenWarmMapedFile writeWithoutMmap transferMsgByHeap osPageCacheBusyTimeOutMills"
        " mappedFileSwapEnable destroyMapedFileIntervalForcibly redeleteHangedFileInterval",
    ),
    **ignored(
        "flushDiskType and flushIntervalCommitLog alone say when the log is synced, and the queues follow it",
        "flushCommitLogTimed flushCommitLogLeastPages flushCommitLogThoroughInterval commitIntervalCommitLog"
        " commitCommitLogLeastPages commitCommitLogThoroughInterval flushIntervalConsumeQueue"
        " flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval syncFlushTimeout flushDelayOffsetInterval"
        " wakeCommitWhenPutMessage wakeFlushWhenPutMessage dispatchFromSenderThread",
    ),
    **ignored(
        "every folder lies below storePathRootDir",
        "storePathConsumeQueue storePathIndex storeCheckpoint storePathCheckpoint abortFile storePathAbort"
        " storePathEpochFile storePathBrokerIdentity storePathDLedgerCommitLog rocketmqHome brokerConfigPath",
    ),
    **ignored(
        "the cleaner looks every 10 s and pauses 100 ms between files",
        "cleanResourceInterval deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax"
        " maxBatchDeleteFilesNum enableCleanExpiredOffset",
    ),
    **ignored(
        "every record carries a CRC of its whole, which is always checked",
        "checkCRCOnRecover enabledAppendPropCRC forceVerifyPropCRC",
    ),
    **ignored(
        "how much one pull brings is the client's to say, up to the size of a frame",
        "maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk"
        " maxTransferCountOnMessageInDisk pullBatchMaxMessageCount defaultQueryMaxNum"
        " maxMsgsNumBatch",
    ),
    **ignored(
        "a poll is held for 15 s at most and woken at once",
        "longPollingEnable shortPollingTimeMills notifyConsumerIdsChangedEnable",
    ),
    **ignored(
        "a stream to each slave carries log and small states; haSendHeartbeatInterval and slaveTimeout are its times",
        "haHousekeepingInterval haTransferBatchSize maxHaTransferByteInSecond haFlowControlEnable offsetCheckInSlave"
        " duplicationEnable syncMasterFlushOffsetWhenStartup",
    ),
    **ignored(
        "a SYNC_MASTER waits for every slave of its in-sync set: minInSyncReplicas and haMaxTimeSlaveNotCatchup",
        "haSlaveFallbehindMax haMaxGapNotInSync totalReplicas inSyncReplicas allAckInSyncStateSet"
        " enableAutoInSyncReplicas checkSyncStateSetPeriod syncBrokerMemberGroupPeriod",
    ),
    **ignored(
        "an operator changes masters, by mqadmin switchMaster, and a slave serves reads only",
        "enableSlaveActingMaster enableRemoteEscape brokerElectionPriority brokerHeartbeatInterval"
        " brokerNotActiveTimeoutMillis sendHeartbeatTimeoutMillis dLegerGroup dLegerPeers dLegerSelfId"
        " preferredLeaderId",
    ),
    **ignored(
        "there is no election; an operator changes masters, by mqadmin switchMaster",
        "enableDLegerCommitLog enableControllerMode",
        allowed="false",
    ),
    **ignored(
        "name servers are given by namesrvAddr",
        "fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup",
        allowed="false",
    ),
    **ignored(
        "a stream to each name server keeps the whole registration",
        "updateNameServerAddrPeriod registerBrokerTimeoutMills compressedRegister forceRegister"
        " rmqAddressServerDomain rmqAddressServerSubGroup",
    ),
    **ignored(
        "OpenTelemetry's traces and metrics take its place",
        "traceTopicEnable msgTraceTopicName traceOn regionId accountStatsEnable metricsExporterType"
        " metricsGrpcExporterTarget metricsPromExporterPort metricsPromExporterHost enableDetailStat",
    ),
    **ignored(
        "delays are levels, see messageDelayLevel",
        "timerWheelEnable timerPrecisionMs timerMaxDelaySec timerInterceptDelayLevel maxDelayTime",
    ),
    **ignored(
        "SQL92 is evaluated on the records themselves, without bloom filters; filter servers ended with RocketMQ 4.3",
        "filterServerNums enableConsumeQueueExt mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt"
        " enableCalcFilterBitMap filterSupportRetry expectConsumerNumUseFilter maxErrorRateOfBloomFilter"
        " maxFilterMessageSize filterDataCleanTimeSpan",
    ),
    **ignored(
        "a broker of RocketMQ does not read it either",
        "checkTransactionMessageEnable sendMessageTimeout compressMsgBodyOverHowmuch",
    ),
    **ignored(
        "there is no access control",
        "aclEnable authenticationEnabled authorizationEnabled",
        allowed="false",
    ),
    **ignored(
        "a broker can be read and written; set the permissions of its topics",
        "brokerPermission",
        allowed="6",
    ),
    **ignored("transactions are always accepted", "rejectTransactionMessage", allowed="false"),
    **ignored("pull consumers are always served", "rejectPullConsumerEnable", allowed="false"),
    **ignored("there is one kind of store", "storeType", allowed="default"),
    **ignored("light queues do not exist here", "enableLmq enableMultiDispatch", allowed="false"),
    **ignored("the index is rebuilt where it is not safe", "messageIndexSafe"),
}
