package hourglass.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;

/** Prints every consume queue, every message as a consumer gets it, and what the index answers for the keys asked. */
record Reader(OpenStore open) {
    private static final int BATCH = 32;
    private static final int FOUND_MAX = 64;

    void readAll() throws IOException {
        for (Map<Integer, ConsumeQueueInterface> queues : open.store().getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) {
                readQueue(queue);
            }
        }
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            JSONObject question = JSON.parseObject(line);
            query(question.getString("topic"), question.getString("key"));
        }
    }

    private void readQueue(ConsumeQueueInterface queue) {
        OpenStore.print("queue", Map.of(
            "topic", queue.getTopic(), "queueId", queue.getQueueId(),
            "minOffset", queue.getMinOffsetInQueue(), "maxOffset", queue.getMaxOffsetInQueue()));
        long offset = queue.getMinOffsetInQueue();
        while (offset < queue.getMaxOffsetInQueue()) {
            GetMessageResult result =
                open.store().getMessage("interop", queue.getTopic(), queue.getQueueId(), offset, BATCH, null);
            if (result.getStatus() != GetMessageStatus.FOUND) {
                throw new IllegalStateException(queue.getTopic() + " " + offset + ": " + result.getStatus());
            }
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                printMessage(queue, buffer);
            }
            result.release();
            offset = result.getNextBeginOffset();
        }
    }

    private void printMessage(ConsumeQueueInterface queue, ByteBuffer buffer) {
        MessageExt message = decode(buffer);
        Map<String, Object> value = new LinkedHashMap<>();
        value.put("topic", message.getTopic());
        value.put("queueId", message.getQueueId());
        value.put("queueOffset", message.getQueueOffset());
        value.put("commitLogOffset", message.getCommitLogOffset());
        value.put("storeSize", message.getStoreSize());
        value.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        value.put("bodyCRC", message.getBodyCRC());
        value.put("properties", message.getProperties());
        value.put("flag", message.getFlag());
        value.put("sysFlag", message.getSysFlag());
        value.put("bornTimestamp", message.getBornTimestamp());
        value.put("bornHost", message.getBornHostString());
        value.put("storeTimestamp", message.getStoreTimestamp());
        value.put("reconsumeTimes", message.getReconsumeTimes());
        value.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        value.put("entry", entry(queue, message.getQueueOffset()));
        OpenStore.print("message", value);
    }

    private static List<Long> entry(ConsumeQueueInterface queue, long offset) {
        ReferredIterator<CqUnit> units = queue.iterateFrom(offset);
        try {
            CqUnit unit = units.next();
            return List.of(unit.getPos(), (long) unit.getSize(), unit.getTagsCode());
        } finally {
            units.release();
        }
    }

    private void query(String topic, String key) {
        QueryMessageResult result = open.store().queryMessage(topic, key, FOUND_MAX, 0, Long.MAX_VALUE);
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            offsets.add(decode(buffer).getCommitLogOffset());
        }
        OpenStore.print("found", Map.of("topic", topic, "key", key, "offsets", offsets));
    }

    private static MessageExt decode(ByteBuffer buffer) {
        MessageExt message = MessageDecoder.decode(buffer, true, false);
        if (message == null) {
            throw new IllegalStateException("RocketMQ cannot decode a record");
        }
        return message;
    }
}
