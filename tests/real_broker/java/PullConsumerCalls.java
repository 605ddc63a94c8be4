import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQPullConsumer, the older of the two pulling clients: consumers by name. */
final class PullConsumerCalls {
    private final String nameServers;
    private final Map<String, DefaultMQPullConsumer> consumers = new ConcurrentHashMap<>();

    private PullConsumerCalls(String nameServers) {
        this.nameServers = nameServers;
    }

    static void addTo(Map<String, JavaClients.Call> calls, String nameServers) {
        PullConsumerCalls consumers = new PullConsumerCalls(nameServers);
        calls.put("pull.start", consumers::start);
        calls.put("pull.pull", consumers::pull);
        calls.put("pull.committed", consumers::committed);
        calls.put("pull.stop", consumers::stop);
    }

    /** Arguments: name, group, topic; the queues of the topic. */
    private Object start(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(arguments.getString("name"));
        Patience.teach(consumer);
        consumer.setConsumerPullTimeoutMillis(Patience.CALL_MILLIS);
        consumer.start();
        consumers.put(arguments.getString("name"), consumer);
        return Shown.queues(consumer.fetchSubscribeMessageQueues(arguments.getString("topic")));
    }

    /** Arguments: name, queue, pulls: a list of [tags, offset]; the status of each, one after another. */
    private Object pull(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = consumers.get(arguments.getString("name"));
        MessageQueue queue = Shown.asQueue(arguments.getJSONObject("queue"));
        JSONArray found = new JSONArray();
        for (Object each : arguments.getJSONArray("pulls")) {
            JSONArray asked = (JSONArray) each;
            found.add(consumer.pull(queue, asked.getString(0), asked.getLongValue(1), 32).getPullStatus().name());
        }
        return found;
    }

    private Object committed(JSONObject arguments) throws Exception {
        return consumers.get(arguments.getString("name"))
            .fetchConsumeOffset(Shown.asQueue(arguments.getJSONObject("queue")), true);
    }

    private Object stop(JSONObject arguments) {
        consumers.remove(arguments.getString("name")).shutdown();
        return null;
    }
}
