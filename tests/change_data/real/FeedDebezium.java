import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

/**
 * Puts changes of a database into a topic as Debezium Server's sink for RocketMQ does: asynchronous sends
 * of a whole batch, the queue by the hash of the key, then a wait for all answers.
 *
 * Some messages are sent before an earlier one, some a second time later. Other than in Debezium Server, a
 * message without a key (of a TRUNCATE) is sent with an empty one, and a send that fails ends the program.
 */
public class FeedDebezium implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private static final int REMEMBERED = 500;
    private static final long ANSWERS_WITHIN_S = 120;

    private record Sent(String key, String value) { }

    private final DefaultMQProducer producer;
    private final String topic;
    private final String lastTable;
    private final Path end;
    private final double disturbed;
    private final Random random;
    private final List<Sent> earlier = new ArrayList<>();

    FeedDebezium(Properties settings) throws Exception {
        topic = settings.getProperty("feed.topic");
        lastTable = settings.getProperty("feed.last.table");
        end = Path.of(settings.getProperty("feed.end"));
        disturbed = Double.parseDouble(settings.getProperty("feed.disturbed"));
        random = new Random(Long.parseLong(settings.getProperty("feed.seed")));
        producer = new DefaultMQProducer("feed");
        producer.setNamesrvAddr(settings.getProperty("feed.name.servers"));
        producer.setSendMsgTimeout(60_000);
        producer.start();
    }

    @Override
    public void handleBatch(
            List<ChangeEvent<String, String>> records,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) throws InterruptedException {
        List<Sent> batch = new ArrayList<>();
        boolean isLast = false;
        for (ChangeEvent<String, String> record : records) {
            if (record.destination().endsWith(lastTable)) {
                isLast = true;
            } else {
                batch.add(new Sent(record.key() == null ? "" : record.key(), record.value()));
            }
        }
        disturb(batch);
        send(batch);
        for (ChangeEvent<String, String> record : records) {
            committer.markProcessed(record);
        }
        committer.markBatchFinished();
        if (isLast) {
            try {
                Files.writeString(end, "");
            } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private void disturb(List<Sent> batch) {
        for (int at = 0; at < batch.size(); at++) {
            if (random.nextDouble() < disturbed) {
                int other = at + random.nextInt(Math.min(8, batch.size() - at));
                Sent moved = batch.set(at, batch.get(other));
                batch.set(other, moved);
            }
        }
        List<Sent> once = List.copyOf(batch);
        for (int again = 0; !earlier.isEmpty() && again < once.size(); again++) {
            if (random.nextDouble() < disturbed) {
                batch.add(random.nextInt(batch.size() + 1), earlier.get(random.nextInt(earlier.size())));
            }
        }
        earlier.addAll(once);
        while (earlier.size() > REMEMBERED) {
            earlier.remove(random.nextInt(earlier.size()));
        }
    }

    private void send(List<Sent> batch) throws InterruptedException {
        CountDownLatch answers = new CountDownLatch(batch.size());
        AtomicReference<Throwable> failure = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                answers.countDown();
            }

            @Override
            public void onException(Throwable error) {
                failure.set(error);
                answers.countDown();
            }
        };
        for (Sent each : batch) {
            Message message = new Message(topic, null, each.key, each.value.getBytes(StandardCharsets.UTF_8));
            try {
                producer.send(message, new SelectMessageQueueByHash(), each.key, callback);
            } catch (Exception error) {
                failure.set(error);
                answers.countDown();
            }
        }
        if (!answers.await(ANSWERS_WITHIN_S, TimeUnit.SECONDS) || failure.get() != null) {
            System.err.println("A send failed: " + failure.get());
            // The next start sends the batch again.
            Runtime.getRuntime().halt(2);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader in = new FileReader(arguments[0])) {
            settings.load(in);
        }
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(settings)
                .using((success, message, error) -> System.err.println("The engine ended: " + message + " " + error))
                .notifying(new FeedDebezium(settings))
                .build();
        engine.run();
        Runtime.getRuntime().halt(3);
    }
}
