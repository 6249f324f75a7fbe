package hourglass.interop;

import com.alibaba.fastjson2.JSON;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ's message store, loaded and started. */
record OpenStore(DefaultMessageStore store) {
    static OpenStore open(Path root, List<Integer> sizes, boolean sealed) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(sizes.get(0));
        config.setMappedFileSizeConsumeQueue(sizes.get(1));
        config.setMaxHashSlotNum(sizes.get(2));
        config.setMaxIndexNum(sizes.get(3));
        config.setMessageIndexSafe(true); // or it deletes index files after a kill and does not make all of them again
        config.setEnabledAppendPropCRC(sealed);
        config.setForceVerifyPropCRC(sealed);
        config.setCheckCRCOnRecover(true);
        config.setFlushDiskType(FlushDiskType.SYNC_FLUSH);
        config.setHaListenPort(0);
        BrokerConfig broker = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager(broker.getBrokerClusterName(), false), null, broker, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ does not load " + root);
        }
        print("loaded", Map.of("minOffset", store.getMinPhyOffset(), "maxOffset", store.getMaxPhyOffset()));
        store.start();
        return new OpenStore(store);
    }

    static void print(String kind, Map<String, ?> value) {
        System.out.println("{\"kind\":\"" + kind + "\",\"value\":" + JSON.toJSONString(value) + "}");
    }

    void close() {
        store.shutdown();
    }
}
