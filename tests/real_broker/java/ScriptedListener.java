import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Answers deliveries by a script and notes them.
 *
 * <p>The script has a list of answers by the key of a batch's first message; its last one is given again and again,
 * and keys it does not name succeed. An answer is a status, "throws" or "null", followed by "ackIndex n",
 * "delayLevel n" or "suspend ms" where the listener is to set that in its context.
 */
final class ScriptedListener {
    private final Map<String, Deque<String>> answers = new HashMap<>();
    private final boolean isAutoCommit;
    private final JSONArray events = new JSONArray();
    private int deliveries;
    private long firstCallNanos;

    ScriptedListener(JSONObject arguments) {
        isAutoCommit = !Boolean.FALSE.equals(arguments.getBoolean("autoCommit"));
        JSONObject script = arguments.getJSONObject("answers");
        if (script != null) {
            script.forEach((key, texts) ->
                answers.put(key, new ArrayDeque<>(((JSONArray) texts).toJavaList(String.class))));
        }
    }

    MessageListenerOrderly orderly() {
        return (messages, context) -> {
            String[] words = answer(messages, "SUCCESS");
            context.setAutoCommit(isAutoCommit);
            if (hasSetting(words, "suspend")) {
                context.setSuspendCurrentQueueTimeMillis(Long.parseLong(words[2]));
            }
            return status(ConsumeOrderlyStatus.class, words[0]);
        };
    }

    MessageListenerConcurrently concurrent() {
        return (messages, context) -> {
            String[] words = answer(messages, "CONSUME_SUCCESS");
            if (hasSetting(words, "ackIndex")) {
                context.setAckIndex(Integer.parseInt(words[2]));
            }
            if (hasSetting(words, "delayLevel")) {
                context.setDelayLevelWhenNextConsume(Integer.parseInt(words[2]));
            }
            return status(ConsumeConcurrentlyStatus.class, words[0]);
        };
    }

    /** The calls noted, once count messages were delivered or the time is over. */
    synchronized JSONArray await(int count, long timeoutMillis) throws InterruptedException {
        long deadline = System.nanoTime() + timeoutMillis * 1_000_000L;
        while (deliveries < count) {
            long leftMillis = (deadline - System.nanoTime()) / 1_000_000L;
            if (leftMillis <= 0) {
                break;
            }
            wait(leftMillis);
        }
        return (JSONArray) events.clone();
    }

    private synchronized String[] answer(List<MessageExt> messages, String otherwise) {
        Deque<String> script = answers.get(messages.get(0).getKeys());
        String text = script == null ? otherwise : script.size() > 1 ? script.poll() : script.peek();
        long now = System.nanoTime();
        if (events.isEmpty()) {
            firstCallNanos = now;
        }
        JSONObject event = new JSONObject();
        event.put("ms", (now - firstCallNanos) / 1_000_000L);
        event.put("atMillis", System.currentTimeMillis());
        event.put("brokerName", messages.get(0).getBrokerName());
        JSONArray shown = new JSONArray();
        messages.forEach(message -> shown.add(Shown.traced(message)));
        event.put("messages", shown);
        event.put("result", text.replaceAll(" suspend .*", ""));
        events.add(event);
        deliveries += messages.size();
        notifyAll();
        return text.split(" ");
    }

    private static boolean hasSetting(String[] words, String name) {
        return words.length > 2 && words[1].equals(name);
    }

    private static <S extends Enum<S>> S status(Class<S> kind, String word) {
        if (word.equals("throws")) {
            throw new IllegalStateException("the script says so");
        }
        return word.equals("null") ? null : Enum.valueOf(kind, word);
    }
}
