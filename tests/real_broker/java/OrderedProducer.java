import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends the steps of many orders, interleaved, each order to the queue its id hashes to.
 *
 * <p>Arguments: nameServers topic orders steps [batch [bodyBytes]]. Body "order-3:step-1", padded with spaces to
 * bodyBytes; tag = step, key = order id. With batch over 1 the messages of a queue go in batches of that size.
 */
public final class OrderedProducer {
    private OrderedProducer() {
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int orders = Integer.parseInt(args[2]);
        int steps = Integer.parseInt(args[3]);
        int batch = args.length > 4 ? Integer.parseInt(args[4]) : 1;
        int bodyBytes = args.length > 5 ? Integer.parseInt(args[5]) : 0;
        DefaultMQProducer producer = new DefaultMQProducer("ordered-producer");
        producer.setNamesrvAddr(args[0]);
        Patience.teach(producer);
        producer.setSendMsgTimeout(Patience.CALL_MILLIS);
        producer.start();
        if (batch > 1) {
            sendBatches(producer, topic, orders, steps, batch, bodyBytes);
        } else {
            sendOneByOne(producer, topic, orders, steps, bodyBytes);
        }
        // Not producer.shutdown(): it waits three seconds for its own sleeping threads.
        System.exit(0);
    }

    private static void sendOneByOne(DefaultMQProducer producer, String topic, int orders, int steps, int bodyBytes)
        throws Exception {
        SelectMessageQueueByHash byHash = new SelectMessageQueueByHash();
        for (int step = 0; step < steps; step++) {
            for (int order = 0; order < orders; order++) {
                producer.send(message(topic, order, step, bodyBytes), byHash, "order-" + order);
            }
        }
    }

    private static void sendBatches(
        DefaultMQProducer producer, String topic, int orders, int steps, int batch, int bodyBytes) throws Exception {
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        SelectMessageQueueByHash byHash = new SelectMessageQueueByHash();
        Map<MessageQueue, List<Message>> waiting = new TreeMap<>();
        for (int step = 0; step < steps; step++) {
            for (int order = 0; order < orders; order++) {
                Message message = message(topic, order, step, bodyBytes);
                MessageQueue queue = byHash.select(queues, message, "order-" + order);
                List<Message> messages = waiting.computeIfAbsent(queue, ignored -> new ArrayList<>());
                messages.add(message);
                if (messages.size() == batch) {
                    producer.send(messages, queue);
                    waiting.remove(queue);
                }
            }
        }
        for (Map.Entry<MessageQueue, List<Message>> rest : waiting.entrySet()) {
            producer.send(rest.getValue(), rest.getKey());
        }
    }

    private static Message message(String topic, int order, int step, int bodyBytes) {
        StringBuilder body = new StringBuilder("order-" + order + ":step-" + step);
        while (body.length() < bodyBytes) {
            body.append(' ');
        }
        byte[] bytes = body.toString().getBytes(StandardCharsets.UTF_8);
        return new Message(topic, "step-" + step, "order-" + order, bytes);
    }
}
