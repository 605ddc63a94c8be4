import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Reads a topic's backlog as a new group of Java's own client and prints how long that took, as one JSON object.
 *
 * <p>Arguments: nameServers topic group count pullBatchSize timeoutSeconds. "seconds" run from the first poll to the last
 * message, "afterFirst" from the first message on. Ends with code 1 when fewer than count messages came.
 */
public final class LitePullSpeed {
    private LitePullSpeed() {
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(Integer.parseInt(args[4]));
        consumer.subscribe(args[1], "*");
        consumer.start();
        long begun = System.nanoTime();
        long deadline = begun + Long.parseLong(args[5]) * 1_000_000_000L;
        long first = 0;
        long last = 0;
        long bytes = 0;
        int seen = 0;
        while (seen < count && System.nanoTime() < deadline) {
            List<MessageExt> polled = consumer.poll(1000);
            if (polled.isEmpty()) {
                continue;
            }
            last = System.nanoTime();
            first = first == 0 ? last : first;
            for (MessageExt message : polled) {
                bytes += message.getBody().length;
            }
            seen += polled.size();
        }
        System.out.println("{\"messages\":" + seen + ",\"bytes\":" + bytes
            + ",\"seconds\":" + (last - begun) / 1e9 + ",\"afterFirst\":" + (last - first) / 1e9 + "}");
        System.out.flush();
        // Not consumer.shutdown(): it waits three seconds for its own sleeping threads.
        System.exit(seen < count ? 1 : 0);
    }
}
