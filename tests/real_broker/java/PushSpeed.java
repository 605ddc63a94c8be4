import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * Takes a topic's backlog through an orderly listener that does nothing, as a new group of Java's own client, and prints how
 * long that took, as one JSON object.
 *
 * <p>Arguments: nameServers topic group count pullBatchSize timeoutSeconds consumeMessageBatchMaxSize. "seconds" run from the
 * start of the consumer to the last listener call, "afterFirst" from the first call on. Ends with code 1 when fewer than count
 * messages came.
 */
public final class PushSpeed {
    private PushSpeed() {
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(Integer.parseInt(args[4]));
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(args[6]));
        consumer.subscribe(args[1], "*");
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        AtomicInteger seen = new AtomicInteger();
        CountDownLatch drained = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            long now = System.nanoTime();
            first.compareAndSet(0, now);
            last.accumulateAndGet(now, Math::max);
            if (seen.addAndGet(messages.size()) >= count) {
                drained.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        long begun = System.nanoTime();
        consumer.start();
        boolean isDrained = drained.await(Long.parseLong(args[5]), TimeUnit.SECONDS);
        System.out.println("{\"messages\":" + seen.get() + ",\"bytes\":0"
            + ",\"seconds\":" + (last.get() - begun) / 1e9 + ",\"afterFirst\":" + (last.get() - first.get()) / 1e9 + "}");
        System.out.flush();
        // Not consumer.shutdown(): it waits for its own sleeping threads.
        System.exit(isDrained ? 0 : 1);
    }
}
