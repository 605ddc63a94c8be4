import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Java's values as JSON. */
final class Shown {
    private static final String[] TRACED_PROPERTIES = {
        MessageConst.PROPERTY_DELAY_TIME_LEVEL, MessageConst.PROPERTY_RETRY_TOPIC,
        MessageConst.PROPERTY_ORIGIN_MESSAGE_ID, MessageConst.PROPERTY_REAL_TOPIC,
        MessageConst.PROPERTY_MIN_OFFSET, MessageConst.PROPERTY_MAX_OFFSET,
    };

    private Shown() {
    }

    /** A delivered message in the words of the recorded traces. */
    static JSONObject traced(MessageExt message) {
        JSONObject shown = new JSONObject();
        shown.put("topic", message.getTopic());
        shown.put("queueId", message.getQueueId());
        shown.put("queueOffset", message.getQueueOffset());
        shown.put("key", message.getKeys());
        shown.put("reconsumeTimes", message.getReconsumeTimes());
        shown.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        for (String name : TRACED_PROPERTIES) {
            if (message.getProperty(name) != null) {
                shown.put(name, message.getProperty(name));
            }
        }
        if (message.getProperty(MessageConst.PROPERTY_CONSUME_START_TIMESTAMP) != null) {
            shown.put(MessageConst.PROPERTY_CONSUME_START_TIMESTAMP, "(set)");
        }
        String uniqueKey = MessageClientIDSetter.getUniqID(message);
        shown.put("msgId_is_uniqKey", message.getMsgId() != null && message.getMsgId().equals(uniqueKey));
        return shown;
    }

    /** Everything a consumer can see of a message. */
    static JSONObject whole(MessageExt message) {
        JSONObject shown = queue(new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId()));
        shown.put("queueOffset", message.getQueueOffset());
        shown.put("keys", message.getKeys());
        shown.put("tags", message.getTags());
        shown.put("flag", message.getFlag());
        shown.put("sysFlag", message.getSysFlag());
        shown.put("msgId", message.getMsgId());
        shown.put("properties", message.getProperties());
        shown.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        return shown;
    }

    static JSONArray whole(List<MessageExt> messages) {
        JSONArray shown = new JSONArray();
        messages.forEach(message -> shown.add(whole(message)));
        return shown;
    }

    static JSONObject queue(MessageQueue queue) {
        JSONObject shown = new JSONObject();
        shown.put("topic", queue.getTopic());
        shown.put("brokerName", queue.getBrokerName());
        shown.put("queueId", queue.getQueueId());
        return shown;
    }

    static JSONArray queues(Collection<MessageQueue> queues) {
        JSONArray shown = new JSONArray();
        queues.stream().sorted().forEach(each -> shown.add(queue(each)));
        return shown;
    }

    static MessageQueue asQueue(JSONObject shown) {
        return new MessageQueue(
            shown.getString("topic"), shown.getString("brokerName"), shown.getIntValue("queueId"));
    }

    static JSONObject sent(SendResult result) {
        JSONObject shown = queue(result.getMessageQueue());
        shown.put("status", result.getSendStatus().name());
        shown.put("queueOffset", result.getQueueOffset());
        shown.put("msgId", result.getMsgId());
        shown.put("offsetMsgId", result.getOffsetMsgId());
        shown.put("transactionId", result.getTransactionId());
        shown.put("regionId", result.getRegionId());
        return shown;
    }
}
