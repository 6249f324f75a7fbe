package hourglass.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;

/** Puts one message a line of standard input, as RocketMQ's broker does, and prints where each stands. */
record Writer(OpenStore open) {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10_911);
    private static final long DISPATCH_MS = 10_000;

    void writeAll() throws IOException, InterruptedException {
        BufferedReader messages = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = messages.readLine(); line != null; line = messages.readLine()) {
            put(message(JSON.parseObject(line)));
        }
        awaitDispatch();
    }

    private static MessageExtBrokerInner message(JSONObject wanted) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(wanted.getString("topic"));
        message.setQueueId(wanted.getIntValue("queueId"));
        message.setBody(Base64.getDecoder().decode(wanted.getString("body")));
        message.setFlag(wanted.getIntValue("flag"));
        message.setSysFlag(wanted.getIntValue("sysFlag"));
        message.setBornTimestamp(wanted.getLongValue("bornTimestamp"));
        message.setReconsumeTimes(wanted.getIntValue("reconsumeTimes"));
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        MessageAccessor.setProperties(message, wanted.getObject("properties", Map.class));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private void put(MessageExtBrokerInner message) {
        PutMessageResult result = open.store().putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException("RocketMQ rejects a message: " + result.getPutMessageStatus());
        }
        OpenStore.print("put", Map.of(
            "queueOffset", result.getAppendMessageResult().getLogicsOffset(),
            "commitLogOffset", result.getAppendMessageResult().getWroteOffset(),
            "storeSize", result.getAppendMessageResult().getWroteBytes(),
            "storeTimestamp", result.getAppendMessageResult().getStoreTimestamp()));
    }

    /** RocketMQ makes consume queues and index a moment after the log; die only when they are there. */
    private void awaitDispatch() throws InterruptedException {
        long giveUp = System.currentTimeMillis() + DISPATCH_MS;
        while (open.store().dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > giveUp) {
                throw new IllegalStateException("RocketMQ does not dispatch what it stored");
            }
            Thread.sleep(1);
        }
    }
}
