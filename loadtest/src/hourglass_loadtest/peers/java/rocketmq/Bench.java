import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The work of load.py on RocketMQ's own client: the same figures, the same events. Arguments: name server, seconds. */
public final class Bench {
    private static final String TOPIC = "bench";
    private static final int BODY_BYTES = 100;
    private static final int IN_FLIGHT = 64;
    private static final int RATE_PER_S = 500;
    private static final int DELAYED_PER_S = 100;
    private static final int DELAY_LEVEL = 1; // one second
    private static final double DELAY_S = 1.0;
    private static final double WARM_UP_S = 0.5;
    private static final long SETTLE_MS = 400;
    private static final double ARRIVAL_TIMEOUT_S = 60.0;

    private final double seconds;
    private final DefaultMQProducer producer = new DefaultMQProducer("bench-producers");
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final AtomicInteger backlogArrived = new AtomicInteger();
    private volatile long firstAt;
    private volatile long lastAt;
    private volatile long[] at = new long[0];
    private volatile byte kind;
    private final AtomicInteger arrived = new AtomicInteger();
    private int stored;

    private Bench(String nameServer, double seconds) throws Exception {
        this.seconds = seconds;
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.start();
    }

    public static void main(String[] arguments) throws Exception {
        try {
            new Bench(arguments[0], Double.parseDouble(arguments[1])).run(arguments[0]);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void run(String nameServer) throws Exception {
        event("{\"event\": \"idle\"}");
        Thread.sleep(SETTLE_MS);
        produceOne(WARM_UP_S);
        begin("produce_1");
        produceOne(seconds);
        produceMany(WARM_UP_S, false);
        begin("produce_64");
        produceMany(seconds, true);
        DefaultMQPushConsumer consumer = consumer(nameServer);
        begin("drain");
        consumer.start();
        await(() -> backlogArrived.get() >= stored, "the backlog");
        end("drain", stored, String.format(Locale.ROOT, "\"msg_per_s\": %.3f", stored / ((lastAt - firstAt) / 1e9)));
        begin("end_to_end");
        paced((byte) 'p', (int) (WARM_UP_S * RATE_PER_S), RATE_PER_S, 0);
        int count = (int) Math.round(seconds * RATE_PER_S);
        long[] intended = paced((byte) 'e', count, RATE_PER_S, 0);
        end("end_to_end", count + (int) (WARM_UP_S * RATE_PER_S), latencies(differences(intended, 0)));
        begin("delay");
        count = (int) Math.max(20, Math.round(seconds * DELAYED_PER_S));
        intended = paced((byte) 'd', count, DELAYED_PER_S, DELAY_LEVEL);
        long[] late = differences(intended, DELAY_S);
        long early = Arrays.stream(late).filter(one -> one < 0).count();
        end("delay", count, latencies(late) + ", \"early\": " + early);
        consumer.shutdown();
        producer.shutdown();
    }

    private DefaultMQPushConsumer consumer(String nameServer) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-group");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                arrive(message.getBody(), now);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private synchronized void arrive(byte[] body, long now) {
        if (body[0] == 'b') {
            if (backlogArrived.getAndIncrement() == 0) {
                firstAt = now;
            }
            lastAt = now;
        } else if (body[0] == kind) {
            int number = (int) ByteBuffer.wrap(body, 1, 8).getLong();
            if (at[number] != 0) {
                failure.compareAndSet(null, new IllegalStateException("a message arrived twice"));
            }
            at[number] = now;
            arrived.incrementAndGet();
        }
    }

    private void produceOne(double duration) throws Exception {
        Message message = message((byte) 'b', 0);
        long[] latencies = new long[1 << 20];
        int count = 0;
        long begin = System.nanoTime();
        long before = begin;
        while (before < begin + duration * 1e9) {
            require(producer.send(new Message(TOPIC, message.getBody())));
            long now = System.nanoTime();
            latencies[count++] = now - before;
            before = now;
        }
        stored += count;
        if (duration == seconds) {
            produced("produce_1", count, begin, Arrays.copyOf(latencies, count));
        }
    }

    private void produceMany(double duration, boolean counts) throws Exception {
        Semaphore window = new Semaphore(IN_FLIGHT);
        AtomicInteger count = new AtomicInteger();
        long[] latencies = new long[1 << 22];
        byte[] body = message((byte) 'b', 0).getBody();
        long begin = System.nanoTime();
        while (System.nanoTime() < begin + duration * 1e9) {
            window.acquire();
            long before = System.nanoTime();
            producer.send(new Message(TOPIC, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        failure.compareAndSet(null, new IllegalStateException("answered " + result.getSendStatus()));
                    }
                    latencies[count.getAndIncrement()] = System.nanoTime() - before;
                    window.release();
                }

                @Override
                public void onException(Throwable error) {
                    failure.compareAndSet(null, error);
                    window.release();
                }
            });
        }
        window.acquire(IN_FLIGHT);
        check();
        stored += count.get();
        if (counts) {
            produced("produce_64", count.get(), begin, Arrays.copyOf(latencies, count.get()));
        }
    }

    /** Sends each at its time and waits until all have arrived; the intended times. */
    private long[] paced(byte which, int count, int perSecond, int delayLevel) throws Exception {
        at = new long[count];
        arrived.set(0);
        kind = which;
        long begin = System.nanoTime() + 100_000_000L;
        long[] intended = new long[count];
        for (int number = 0; number < count; number++) {
            intended[number] = begin + number * 1_000_000_000L / perSecond;
            while (System.nanoTime() < intended[number]) {
                LockSupport.parkNanos(intended[number] - System.nanoTime());
            }
            Message message = message(which, number);
            if (delayLevel > 0) {
                message.setDelayTimeLevel(delayLevel);
            }
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    // Its arrival is what counts.
                }

                @Override
                public void onException(Throwable error) {
                    failure.compareAndSet(null, error);
                }
            });
        }
        await(() -> arrived.get() >= count, count + " messages");
        return intended;
    }

    private long[] differences(long[] intended, double delayS) {
        long[] result = new long[intended.length];
        Arrays.setAll(result, number -> at[number] - intended[number] - (long) (delayS * 1e9));
        return result;
    }

    private void await(java.util.function.BooleanSupplier done, String what) throws Exception {
        long deadline = System.nanoTime() + (long) (ARRIVAL_TIMEOUT_S * 1e9);
        while (!done.getAsBoolean()) {
            check();
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(what + " did not arrive");
            }
            LockSupport.parkNanos(1_000_000);
        }
        check();
    }

    private void check() {
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
    }

    private static void require(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("answered " + result.getSendStatus());
        }
    }

    private static Message message(byte kind, long number) {
        return new Message(TOPIC, ByteBuffer.allocate(BODY_BYTES).put(kind).putLong(number).array());
    }

    private static void produced(String figure, int count, long begin, long[] latencies) {
        double rate = count / ((System.nanoTime() - begin) / 1e9);
        end(figure, count, String.format(Locale.ROOT, "\"msg_per_s\": %.3f, %s", rate, latencies(latencies)));
    }

    private static String latencies(long[] nanos) {
        long[] sorted = nanos.clone();
        Arrays.sort(sorted);
        return String.format(Locale.ROOT, "\"p50_ms\": %.6f, \"p99_ms\": %.6f, \"max_ms\": %.6f",
            percentile(sorted, 50) / 1e6, percentile(sorted, 99) / 1e6, sorted[sorted.length - 1] / 1e6);
    }

    private static long percentile(long[] sorted, double percent) {
        return sorted[Math.max(0, (int) Math.ceil(percent / 100 * sorted.length) - 1)];
    }

    private static void begin(String figure) throws Exception {
        event("{\"event\": \"next\", \"figure\": \"" + figure + "\"}");
        Thread.sleep(SETTLE_MS);
        event("{\"event\": \"begin\", \"figure\": \"" + figure + "\"}");
    }

    private static void end(String figure, int messages, String metrics) {
        event("{\"event\": \"end\", \"figure\": \"" + figure + "\", \"messages\": " + messages
            + ", \"metrics\": {" + metrics + "}}");
    }

    private static void event(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
