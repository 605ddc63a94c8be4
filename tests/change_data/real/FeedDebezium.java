import com.alibaba.otter.canal.connector.core.producer.MQMessageUtils;
import com.alibaba.otter.canal.connector.core.util.CanalMessageSerializerUtil;
import com.alibaba.otter.canal.protocol.CanalEntry.Column;
import com.alibaba.otter.canal.protocol.CanalEntry.Entry;
import com.alibaba.otter.canal.protocol.CanalEntry.EntryType;
import com.alibaba.otter.canal.protocol.CanalEntry.EventType;
import com.alibaba.otter.canal.protocol.CanalEntry.Header;
import com.alibaba.otter.canal.protocol.CanalEntry.RowChange;
import com.alibaba.otter.canal.protocol.CanalEntry.RowData;
import com.alibaba.otter.canal.protocol.CanalEntry.Type;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.IOException;
import java.io.Reader;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadPoolExecutor;
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
 * Some messages are sent before an earlier one, some a second time later; what was done to each batch is
 * appended to the file feed.counts. Other than in Debezium Server, a message without a key (of a TRUNCATE, or
 * of a table without a key) is sent with an empty one, and a send that fails ends the program.
 *
 * Changes of the tables in feed.canal.tables go into another topic, as the messages of Canal.
 */
public class FeedDebezium implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private static final int REMEMBERED = 500;
    private static final long ANSWERS_WITHIN_S = 120;
    static final String UNAVAILABLE = "__debezium_unavailable_value";

    /** A message: the value whose hash chooses the queue, KEYS, and the body. */
    record Sent(String topic, Object queueBy, String keys, byte[] body, boolean lacksValues) { }

    private final DefaultMQProducer producer;
    private final String topic;
    private final List<String> canalTables;
    private final CanalMessages canal;
    private final String lastTable;
    private final Path end;
    private final Path counts;
    private final double disturbed;
    private final Random random;
    private final List<Sent> earlier = new ArrayList<>();
    private int swapped;
    private int repeated;

    FeedDebezium(Properties settings) throws Exception {
        topic = settings.getProperty("feed.topic");
        canalTables = List.of(settings.getProperty("feed.canal.tables").split(","));
        canal = new CanalMessages(
                settings.getProperty("feed.canal.topic"), Integer.parseInt(settings.getProperty("feed.canal.queues")));
        lastTable = settings.getProperty("feed.last.table");
        end = Path.of(settings.getProperty("feed.end"));
        counts = Path.of(settings.getProperty("feed.counts"));
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
            } else if (canalTables.stream().anyMatch(record.destination()::endsWith)) {
                batch.add(canal.of(record.key(), record.value()));
            } else {
                batch.add(message(record));
            }
        }
        int changes = batch.size();
        disturb(batch);
        send(batch);
        for (ChangeEvent<String, String> record : records) {
            committer.markProcessed(record);
        }
        committer.markBatchFinished();
        count(batch, changes);
        if (isLast) {
            write(end, "");
        }
    }

    private Sent message(ChangeEvent<String, String> record) {
        String key = record.key() == null ? "" : record.key();
        byte[] body = record.value().getBytes(StandardCharsets.UTF_8);
        return new Sent(topic, key, key, body, record.value().contains(UNAVAILABLE));
    }

    private void disturb(List<Sent> batch) {
        swapped = 0;
        repeated = 0;
        for (int at = 0; at < batch.size(); at++) {
            if (random.nextDouble() < disturbed) {
                int other = at + random.nextInt(Math.min(8, batch.size() - at));
                Sent moved = batch.set(at, batch.get(other));
                batch.set(other, moved);
                swapped += other == at ? 0 : 1;
            }
        }
        List<Sent> once = List.copyOf(batch);
        for (int again = 0; !earlier.isEmpty() && again < once.size(); again++) {
            if (random.nextDouble() < disturbed) {
                batch.add(random.nextInt(batch.size() + 1), earlier.get(random.nextInt(earlier.size())));
                repeated++;
            }
        }
        earlier.addAll(once);
        while (earlier.size() > REMEMBERED) {
            earlier.remove(random.nextInt(earlier.size()));
        }
    }

    private void count(List<Sent> batch, int changes) {
        long lacking = batch.stream().filter(Sent::lacksValues).count();
        long ofCanal = batch.stream().filter(each -> !each.topic.equals(topic)).count();
        write(counts, String.format(
                "messages read=%d\nsends swapped=%d\nsends repeated=%d\nmessages without a big value=%d\n"
                + "messages by Canal's classes=%d\n", changes, swapped, repeated, lacking, ofCanal));
    }

    private static void write(Path file, String text) {
        try {
            Files.writeString(file, text, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new IllegalStateException(error);
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
            Message message = new Message(each.topic, null, each.keys, each.body);
            try {
                producer.send(message, new SelectMessageQueueByHash(), each.queueBy, callback);
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

/**
 * Makes of a change that Debezium has read what Canal sends with canal.mq.flatMessage=false and
 * canal.mq.partitionHash=.*\\..*:$pk$, by the classes of its producer.
 *
 * Canal's own parser reads only MySQL. So tables have MySQL's types here, values are texts, and a change has a
 * place in a binary log: the commit before its transaction as the file's number, the place in the transaction
 * as the offset. A column whose value is left out is missing, as with binlog_row_image=MINIMAL.
 */
final class CanalMessages {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long MOST_IN_TRANSACTION = 1_000_000;
    private static final String HASH = ".*\\..*:$pk$";

    private final ThreadPoolExecutor pool =
            new ThreadPoolExecutor(1, 1, 1, TimeUnit.SECONDS, new ArrayBlockingQueue<>(100));
    private final String topic;
    private final int queues;
    private long id;

    CanalMessages(String topic, int queues) {
        this.topic = topic;
        this.queues = queues;
    }

    /** Return the message of one change; key and value are Debezium's JSON, with schemas. */
    FeedDebezium.Sent of(String key, String value) {
        try {
            JsonNode event = JSON.readTree(value);
            JsonNode keys = key == null ? JSON.createObjectNode() : JSON.readTree(key).get("payload");
            Entry entry = entry(event, keys);
            id++;
            var message = new com.alibaba.otter.canal.protocol.Message(id, new ArrayList<>(List.of(entry)));
            var parts = MQMessageUtils.messagePartition(
                    MQMessageUtils.buildMessageData(message, pool), id, queues, HASH, false);
            for (int at = 0; at < parts.length; at++) {
                if (parts[at] != null) {
                    byte[] body = CanalMessageSerializerUtil.serializer(parts[at], true);
                    boolean lacksValues = value.contains(FeedDebezium.UNAVAILABLE);
                    return new FeedDebezium.Sent(topic, at, "", body, lacksValues);
                }
            }
            throw new IllegalStateException("Canal gives no queue to " + value);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Entry entry(JsonNode event, JsonNode keys) throws IOException {
        JsonNode payload = event.get("payload");
        JsonNode source = payload.get("source");
        EventType type = type(payload.get("op").asText());
        RowChange.Builder change = RowChange.newBuilder().setEventType(type).setIsDdl(type == EventType.TRUNCATE);
        if (type == EventType.TRUNCATE) {
            change.setSql("TRUNCATE TABLE " + source.get("table").asText());
        } else {
            JsonNode columns = columns(event.get("schema"));
            RowData.Builder row = RowData.newBuilder();
            if (type != EventType.INSERT) {
                columns(columns, keys, keys).forEach(row::addBeforeColumns);
            }
            if (type != EventType.DELETE) {
                columns(columns, payload.get("after"), keys).forEach(row::addAfterColumns);
            }
            change.addRowDatas(row);
        }
        return Entry.newBuilder()
                .setHeader(header(payload, source, type))
                .setEntryType(EntryType.ROWDATA)
                .setStoreValue(change.build().toByteString())
                .build();
    }

    private static Header header(JsonNode payload, JsonNode source, EventType type) throws IOException {
        long lsn = source.get("lsn").asLong();
        JsonNode before = JSON.readTree(source.get("sequence").asText()).get(0);
        JsonNode transaction = payload.path("transaction");
        return Header.newBuilder()
                .setVersion(1)
                .setServerId(1)
                .setServerenCode("UTF-8")
                .setSourceType(Type.MYSQL)
                .setLogfileName("mysql-bin." + (before.isNull() ? lsn : before.asLong()))
                .setLogfileOffset(lsn * MOST_IN_TRANSACTION + transaction.path("total_order").asLong())
                .setExecuteTime(source.get("ts_ms").asLong())
                .setSchemaName(source.get("schema").asText())
                .setTableName(source.get("table").asText())
                .setEventType(type)
                .build();
    }

    private static EventType type(String operation) {
        return switch (operation) {
            case "c", "r" -> EventType.INSERT;
            case "u" -> EventType.UPDATE;
            case "d" -> EventType.DELETE;
            case "t" -> EventType.TRUNCATE;
            default -> throw new IllegalArgumentException("Canal has no operation " + operation);
        };
    }

    private static JsonNode columns(JsonNode schema) {
        for (JsonNode member : schema.get("fields")) {
            if (member.get("field").asText().equals("after")) {
                return member.get("fields");
            }
        }
        throw new IllegalArgumentException("The schema has no rows: " + schema);
    }

    private static List<Column> columns(JsonNode columns, JsonNode row, JsonNode keys) throws IOException {
        List<Column> found = new ArrayList<>();
        for (JsonNode column : columns) {
            String name = column.get("field").asText();
            JsonNode value = row.get(name);
            if (value != null && !value.asText().equals(FeedDebezium.UNAVAILABLE)) {
                found.add(column(found.size(), column, value, keys.has(name)));
            }
        }
        return found;
    }

    private static Column column(int at, JsonNode declared, JsonNode value, boolean isKey) throws IOException {
        Column.Builder column = Column.newBuilder()
                .setIndex(at)
                .setName(declared.get("field").asText())
                .setIsKey(isKey)
                .setUpdated(true)
                .setIsNull(value.isNull());
        boolean isDecimal = "org.apache.kafka.connect.data.Decimal".equals(declared.path("name").asText());
        JsonNode size = declared.path("parameters");
        column.setMysqlType(switch (declared.get("type").asText()) {
            case "int32" -> "int";
            case "int64" -> "bigint";
            case "string" -> "longtext";
            case "bytes" -> String.format(
                    "decimal(%s,%s)", size.get("connect.decimal.precision").asText(), size.get("scale").asText());
            default -> throw new IllegalArgumentException("No type of MySQL for " + declared);
        });
        if (!value.isNull()) {
            column.setValue(isDecimal ? decimal(value, size.get("scale").asInt()) : value.asText());
        }
        return column.build();
    }

    private static String decimal(JsonNode value, int scale) throws IOException {
        return new BigDecimal(new BigInteger(value.binaryValue()), scale).toPlainString();
    }
}
