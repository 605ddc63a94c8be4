import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Notes when an orderly listener of Java's own client gets each message of a topic.
 *
 * <p>Arguments: nameServers topic group consumeMessageBatchMaxSize capacity. For each line "count" of its input it prints how many
 * messages came; when its input ends, a line "storeTime listenerTime" for each message, in milliseconds, and ends with code 1
 * if more than the capacity came.
 */
public final class PushLatency {
    private PushLatency() {
    }

    public static void main(String[] args) throws Exception {
        int capacity = Integer.parseInt(args[4]);
        long[] stored = new long[capacity];
        long[] heard = new long[capacity];
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(args[3]));
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            long now = System.currentTimeMillis();
            int at = count.getAndAdd(messages.size());
            for (MessageExt message : messages) {
                if (at < capacity) {
                    stored[at] = message.getStoreTimestamp();
                    heard[at] = now;
                }
                at++;
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        java.io.BufferedReader input = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        while (input.readLine() != null) {
            System.out.println(count.get());
            System.out.flush();
        }
        StringBuilder lines = new StringBuilder();
        for (int at = 0; at < Math.min(capacity, count.get()); at++) {
            lines.append(stored[at]).append(' ').append(heard[at]).append('\n');
        }
        System.out.print(lines);
        System.out.flush();
        // Not consumer.shutdown(): it waits for its own sleeping threads.
        System.exit(count.get() > capacity ? 1 : 0);
    }
}
