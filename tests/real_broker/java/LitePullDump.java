import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Collection;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads a topic as a new group from its beginning with Java's own client and prints one JSON object a message, in reading order.
 *
 * <p>Arguments: nameServers topic group count timeoutSeconds. Ends with code 1 when fewer than count messages came.
 */
public final class LitePullDump {
    private LitePullDump() {
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        long deadline = System.nanoTime() + Long.parseLong(args[4]) * 1_000_000_000L;
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setAutoCommit(false);
        Patience.teach(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        // Assigning by hand spares the wait for a rebalance. Who seeks afterwards may have read something before.
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(args[1]);
        consumer.assign(queues);
        int seen = 0;
        while (seen < count && System.nanoTime() < deadline) {
            for (MessageExt message : consumer.poll(100)) {
                print(message);
                seen++;
            }
        }
        System.out.flush();
        if (seen < count) {
            System.err.println("only " + seen + " of " + count + " messages came");
        }
        // Not consumer.shutdown(): it waits three seconds for its own sleeping threads.
        System.exit(seen < count ? 1 : 0);
    }

    private static void print(MessageExt message) {
        String body = Base64.getEncoder().encodeToString(message.getBody());
        System.out.println("{\"queueId\":" + message.getQueueId()
            + ",\"queueOffset\":" + message.getQueueOffset()
            + ",\"brokerName\":" + quoted(message.getBrokerName())
            + ",\"keys\":" + quoted(message.getKeys())
            + ",\"tags\":" + quoted(message.getTags())
            + ",\"body\":\"" + body + "\""
            + ",\"msgId\":" + quoted(message.getMsgId()) + "}");
    }

    private static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c < ' ' || c > '~' || c == '"' || c == '\\') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
