import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultLitePullConsumer: consumers by name. */
final class LitePullCalls {
    private final String nameServers;
    private final Map<String, DefaultLitePullConsumer> consumers = new ConcurrentHashMap<>();

    private LitePullCalls(String nameServers) {
        this.nameServers = nameServers;
    }

    static void addTo(Map<String, JavaClients.Call> calls, String nameServers) {
        LitePullCalls consumers = new LitePullCalls(nameServers);
        calls.put("lite.start", consumers::start);
        calls.put("lite.queues", arguments ->
            Shown.queues(consumers.get(arguments).fetchMessageQueues(arguments.getString("topic"))));
        calls.put("lite.assignment", arguments -> Shown.queues(consumers.get(arguments).assignment()));
        calls.put("lite.poll", consumers::poll);
        calls.put("lite.seek", consumers::seek);
        calls.put("lite.commit", consumers::commit);
        calls.put("lite.committed", arguments ->
            consumers.get(arguments).committed(Shown.asQueue(arguments.getJSONObject("queue"))));
        calls.put("lite.offsetForTimestamp", arguments -> consumers.get(arguments).offsetForTimestamp(
            Shown.asQueue(arguments.getJSONObject("queue")), arguments.getLongValue("timestamp")));
        calls.put("lite.stop", consumers::stop);
    }

    /** Arguments: name, group; topic with tags or sql to subscribe, or queues to assign and offsets to begin at. */
    private Object start(JSONObject arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(arguments.getString("name"));
        consumer.setAutoCommit(arguments.getBooleanValue("autoCommit"));
        Patience.teach(consumer);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (arguments.containsKey("sql")) {
            consumer.subscribe(arguments.getString("topic"), MessageSelector.bySql(arguments.getString("sql")));
        } else if (arguments.containsKey("tags")) {
            consumer.subscribe(arguments.getString("topic"), arguments.getString("tags"));
        }
        consumer.start();
        consumers.put(arguments.getString("name"), consumer);
        if (arguments.containsKey("assign")) {
            List<MessageQueue> queues = new ArrayList<>();
            for (Object each : arguments.getJSONArray("assign")) {
                queues.add(Shown.asQueue((JSONObject) each));
            }
            consumer.assign(queues);
        }
        return null;
    }

    /** Arguments: name, count, timeoutMillis; the messages that came until then, in their order. */
    private Object poll(JSONObject arguments) {
        DefaultLitePullConsumer consumer = get(arguments);
        long deadline = System.nanoTime() + arguments.getLongValue("timeoutMillis") * 1_000_000L;
        JSONArray messages = new JSONArray();
        while (messages.size() < arguments.getIntValue("count") && System.nanoTime() < deadline) {
            for (MessageExt message : consumer.poll(100)) {
                messages.add(Shown.whole(message));
            }
        }
        return messages;
    }

    /** Arguments: name, queue, to: begin, end or an offset. */
    private Object seek(JSONObject arguments) throws Exception {
        DefaultLitePullConsumer consumer = get(arguments);
        MessageQueue queue = Shown.asQueue(arguments.getJSONObject("queue"));
        String to = arguments.getString("to");
        if ("begin".equals(to)) {
            consumer.seekToBegin(queue);
        } else if ("end".equals(to)) {
            consumer.seekToEnd(queue);
        } else {
            consumer.seek(queue, Long.parseLong(to));
        }
        return null;
    }

    private Object commit(JSONObject arguments) {
        get(arguments).commitSync();
        return null;
    }

    private Object stop(JSONObject arguments) {
        consumers.remove(arguments.getString("name")).shutdown();
        return null;
    }

    private DefaultLitePullConsumer get(JSONObject arguments) {
        return consumers.get(arguments.getString("name"));
    }
}
