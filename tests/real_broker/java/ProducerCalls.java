import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQProducer: one per producer group, started at its first use. */
final class ProducerCalls {
    private static final long ASYNC_TIMEOUT_S = 90;

    private final String nameServers;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();

    private ProducerCalls(String nameServers) {
        this.nameServers = nameServers;
    }

    static void addTo(Map<String, JavaClients.Call> calls, String nameServers) {
        ProducerCalls producers = new ProducerCalls(nameServers);
        calls.put("producer.send", producers::send);
        calls.put("producer.queues", producers::queues);
        calls.put("producer.ask", producers::ask);
        calls.put("producer.request", producers::request);
        calls.put("producer.reply", producers::reply);
        calls.put("producer.stop", producers::stop);
    }

    /** Arguments: group, how (sync, async, oneway, batch, hash, queue), messages, arg, queue; the SendResults. */
    private Object send(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = producer(arguments);
        List<Message> messages = new ArrayList<>();
        for (Object each : arguments.getJSONArray("messages")) {
            messages.add(message((JSONObject) each));
        }
        JSONArray results = new JSONArray();
        if ("batch".equals(arguments.getString("how"))) {
            results.add(Shown.sent(producer.send(messages)));
            return results;
        }
        for (Message message : messages) {
            SendResult result = sendOne(producer, message, arguments);
            results.add(result == null ? null : Shown.sent(result));
        }
        return results;
    }

    /** Arguments: group, message; the reply's body, once a consumer has sent it. */
    private Object request(JSONObject arguments) throws Exception {
        CompletableFuture<Message> replied = new CompletableFuture<>();
        // 5.3.3 calls it with null first, once the request is stored; its blocking form returns then.
        RequestCallback callback = new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                if (reply != null) {
                    replied.complete(reply);
                }
            }

            @Override
            public void onException(Throwable problem) {
                replied.completeExceptionally(problem);
            }
        };
        producer(arguments).request(message(arguments.getJSONObject("message")), callback, Patience.CALL_MILLIS);
        return new String(replied.get(ASYNC_TIMEOUT_S, TimeUnit.SECONDS).getBody(), StandardCharsets.UTF_8);
    }

    /** Arguments: group, body, to (the properties of the request); the SendResult of the reply. */
    private Object reply(JSONObject arguments) throws Exception {
        Message asked = new Message();
        arguments.getJSONObject("to").forEach((name, value) -> MessageAccessor.putProperty(asked, name, (String) value));
        byte[] body = arguments.getString("body").getBytes(StandardCharsets.UTF_8);
        return Shown.sent(producer(arguments).send(MessageUtil.createReplyMessage(asked, body)));
    }

    private Object queues(JSONObject arguments) throws Exception {
        return Shown.queues(producer(arguments).fetchPublishMessageQueues(arguments.getString("topic")));
    }

    /** Arguments: group, queue, key, newTopic; what a producer can ask of a broker, one call after another. */
    private Object ask(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = producer(arguments);
        MessageQueue queue = Shown.asQueue(arguments.getJSONObject("queue"));
        JSONObject answers = new JSONObject();
        answers.put("maxOffset", producer.maxOffset(queue));
        answers.put("minOffset", producer.minOffset(queue));
        answers.put("earliestMsgStoreTime", producer.earliestMsgStoreTime(queue));
        answers.put("searchOffset", producer.searchOffset(queue, 0));
        long now = System.currentTimeMillis();
        answers.put("found", Shown.whole(producer.queryMessage(
            queue.getTopic(), arguments.getString("key"), 10, 0, now).getMessageList()));
        producer.createTopic("TBW102", arguments.getString("newTopic"), 2, null);
        return answers;
    }

    private Object stop(JSONObject arguments) {
        producers.remove(arguments.getString("group")).shutdown();
        return null;
    }

    private DefaultMQProducer producer(JSONObject arguments) throws Exception {
        String group = arguments.getString("group");
        synchronized (producers) {
            DefaultMQProducer producer = producers.get(group);
            if (producer == null) {
                producer = new DefaultMQProducer(group);
                producer.setNamesrvAddr(nameServers);
                producer.setInstanceName(group);
                Patience.teach(producer);
                producer.setSendMsgTimeout(Patience.CALL_MILLIS);
                producer.setPollNameServerInterval(Patience.NEVER_MILLIS);
                if (arguments.containsKey("defaultTopicQueueNums")) {
                    producer.setDefaultTopicQueueNums(arguments.getIntValue("defaultTopicQueueNums"));
                }
                producer.start();
                producers.put(group, producer);
            }
            return producer;
        }
    }

    private static SendResult sendOne(DefaultMQProducer producer, Message message, JSONObject arguments)
        throws Exception {
        switch (arguments.getString("how")) {
            case "sync":
                return producer.send(message);
            case "async":
                return sendAsync(producer, message);
            case "oneway":
                producer.sendOneway(message);
                return null;
            case "hash":
                return producer.send(message, new SelectMessageQueueByHash(), arguments.get("arg"));
            case "queue":
                return producer.send(message, Shown.asQueue(arguments.getJSONObject("queue")));
            default:
                throw new IllegalArgumentException("how is one of sync, async, oneway, batch, hash, queue");
        }
    }

    private static SendResult sendAsync(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<SendResult> sent = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent.complete(result);
            }

            @Override
            public void onException(Throwable problem) {
                sent.completeExceptionally(problem);
            }
        });
        return sent.get(ASYNC_TIMEOUT_S, TimeUnit.SECONDS);
    }

    private static Message message(JSONObject described) {
        byte[] body = described.getString("body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(described.getString("topic"), body);
        if (described.containsKey("tags")) {
            message.setTags(described.getString("tags"));
        }
        if (described.containsKey("keys")) {
            message.setKeys(described.getString("keys"));
        }
        if (described.containsKey("delayLevel")) {
            message.setDelayTimeLevel(described.getIntValue("delayLevel"));
        }
        if (described.containsKey("delayMillis")) {
            message.setDelayTimeMs(described.getLongValue("delayMillis"));
        }
        message.setFlag(described.getIntValue("flag"));
        JSONObject properties = described.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        return message;
    }
}
