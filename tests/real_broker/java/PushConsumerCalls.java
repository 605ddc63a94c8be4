import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** DefaultMQPushConsumer with scripted listeners: consumers by name. */
final class PushConsumerCalls {
    private final String nameServers;
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, ScriptedListener> listeners = new ConcurrentHashMap<>();

    private PushConsumerCalls(String nameServers) {
        this.nameServers = nameServers;
    }

    static void addTo(Map<String, JavaClients.Call> calls, String nameServers) {
        PushConsumerCalls consumers = new PushConsumerCalls(nameServers);
        calls.put("push.start", consumers::start);
        calls.put("push.events", consumers::events);
        calls.put("push.assignment", consumers::assignment);
        calls.put("push.rebalance", consumers::rebalance);
        calls.put("push.persist", consumers::persist);
        calls.put("push.suspend", arguments -> consumers.pause(arguments, true));
        calls.put("push.resume", arguments -> consumers.pause(arguments, false));
        calls.put("push.stop", consumers::stop);
    }

    /** Arguments: name, group, topic, tags or sql, isOrderly, isBroadcasting, answers and the client's settings. */
    private Object start(JSONObject arguments) throws Exception {
        String name = arguments.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(name);
        Patience.teach(consumer);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        configure(consumer, arguments);
        if (arguments.containsKey("sql")) {
            consumer.subscribe(arguments.getString("topic"), MessageSelector.bySql(arguments.getString("sql")));
        } else {
            consumer.subscribe(arguments.getString("topic"), arguments.getString("tags"));
        }
        ScriptedListener listener = new ScriptedListener(arguments);
        if (arguments.getBooleanValue("isOrderly")) {
            consumer.registerMessageListener(listener.orderly());
        } else {
            consumer.registerMessageListener(listener.concurrent());
        }
        listeners.put(name, listener);
        consumers.put(name, consumer);
        consumer.start();
        return null;
    }

    private static void configure(DefaultMQPushConsumer consumer, JSONObject arguments) {
        if (arguments.getBooleanValue("isBroadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (arguments.containsKey("maxReconsumeTimes")) {
            consumer.setMaxReconsumeTimes(arguments.getIntValue("maxReconsumeTimes"));
        }
        if (arguments.containsKey("suspendMillis")) {
            consumer.setSuspendCurrentQueueTimeMillis(arguments.getLongValue("suspendMillis"));
        }
        if (arguments.containsKey("batch")) {
            consumer.setConsumeMessageBatchMaxSize(arguments.getIntValue("batch"));
        }
        consumer.setUseHeartbeatV2(arguments.getBooleanValue("useHeartbeatV2"));
        if (arguments.containsKey("namespace")) {
            consumer.setNamespace(arguments.getString("namespace"));
        }
        if (arguments.containsKey("namespaceV2")) {
            consumer.setNamespaceV2(arguments.getString("namespaceV2"));
        }
        if (arguments.containsKey("heartbeatMillis")) {
            consumer.setHeartbeatBrokerInterval(arguments.getIntValue("heartbeatMillis"));
        }
    }

    /** Arguments: name, count, timeoutMillis; the listener's calls, once that many messages were delivered. */
    private Object events(JSONObject arguments) throws InterruptedException {
        return listeners.get(arguments.getString("name"))
            .await(arguments.getIntValue("count"), arguments.getLongValue("timeoutMillis"));
    }

    private Object assignment(JSONObject arguments) {
        JSONArray shown = new JSONArray();
        consumers.get(arguments.getString("name")).getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().forEach((queue, process) -> {
                JSONObject each = Shown.queue(queue);
                each.put("isLocked", process.isLocked());
                shown.add(each);
            });
        return shown;
    }

    /** Do at once what the client's timer first does ten seconds after its start. */
    private Object persist(JSONObject arguments) {
        consumers.get(arguments.getString("name")).getDefaultMQPushConsumerImpl().persistConsumerOffset();
        return null;
    }

    /** Look at the group at once: the first look of the timer meets the first heartbeat of another. */
    private Object rebalance(JSONObject arguments) {
        consumers.get(arguments.getString("name")).getDefaultMQPushConsumerImpl().doRebalance();
        return null;
    }

    private Object pause(JSONObject arguments, boolean isPaused) {
        DefaultMQPushConsumer consumer = consumers.get(arguments.getString("name"));
        if (isPaused) {
            consumer.suspend();
        } else {
            consumer.resume();
        }
        return null;
    }

    private Object stop(JSONObject arguments) {
        consumers.remove(arguments.getString("name")).shutdown();
        return null;
    }
}
