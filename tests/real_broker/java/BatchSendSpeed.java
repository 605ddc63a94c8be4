import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/**
 * Sends batches from several threads, each batch to the next queue, and prints how long that took, as one JSON object.
 *
 * <p>Arguments: nameServers topic count bodyBytes batch threads. "seconds" run from the first batch to the last answer;
 * the connection is there before. Ends with code 1 when a batch was not sent.
 */
public final class BatchSendSpeed {
    private BatchSendSpeed() {
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        byte[] body = new byte[Integer.parseInt(args[3])];
        int batch = Integer.parseInt(args[4]);
        java.util.Arrays.fill(body, (byte) '.');
        DefaultMQProducer producer = new DefaultMQProducer("batch-send-speed");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        producer.send(new Message(topic, "warm", body.clone()), queues.get(0));

        AtomicInteger next = new AtomicInteger();
        AtomicInteger sent = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        long begun = System.nanoTime();
        for (int number = 0; number < Integer.parseInt(args[5]); number++) {
            Thread thread = new Thread(() -> {
                try {
                    for (int first = next.getAndAdd(batch); first < count; first = next.getAndAdd(batch)) {
                        int size = Math.min(batch, count - first);
                        List<Message> messages = new ArrayList<>(size);
                        for (int at = 0; at < size; at++) {
                            byte[] own = body.clone();
                            byte[] head = String.format("%016d", first + at).getBytes();
                            System.arraycopy(head, 0, own, 0, Math.min(head.length, own.length));
                            messages.add(new Message(topic, "T", own));
                        }
                        send(producer, messages, queues.get(first / batch % queues.size()));
                        sent.addAndGet(size);
                    }
                } catch (Exception problem) {
                    problem.printStackTrace();
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("{\"messages\":" + sent + ",\"bytes\":" + (long) sent.get() * body.length
            + ",\"seconds\":" + (System.nanoTime() - begun) / 1e9 + "}");
        System.out.flush();
        // Not producer.shutdown(): it waits three seconds for its own sleeping threads.
        System.exit(sent.get() < count ? 1 : 0);
    }

    /** A broker that is busy has not stored the batch; the sink tries again, too. */
    private static void send(DefaultMQProducer producer, List<Message> messages, MessageQueue queue) throws Exception {
        while (true) {
            try {
                producer.send(messages, queue);
                return;
            } catch (MQBrokerException refused) {
                if (refused.getResponseCode() != ResponseCode.SYSTEM_BUSY) {
                    throw refused;
                }
                Thread.sleep(5);
            }
        }
    }
}
