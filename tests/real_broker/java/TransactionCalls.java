import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** TransactionMQProducer: one per producer group; a transaction ends as the body of its message says. */
final class TransactionCalls {
    private final String nameServers;
    private final Map<String, TransactionMQProducer> producers = new ConcurrentHashMap<>();

    private TransactionCalls(String nameServers) {
        this.nameServers = nameServers;
    }

    static void addTo(Map<String, JavaClients.Call> calls, String nameServers) {
        TransactionCalls producers = new TransactionCalls(nameServers);
        calls.put("transaction.send", producers::send);
        calls.put("transaction.stop", producers::stop);
    }

    /** Arguments: group, topic, states; what each of the transactions said of itself, one after another. */
    private Object send(JSONObject arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(arguments.getString("group"));
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName(arguments.getString("group"));
        Patience.teach(producer);
        producer.setSendMsgTimeout(Patience.CALL_MILLIS);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setTransactionListener(new AsTheBodySays());
        producer.start();
        producers.put(arguments.getString("group"), producer);
        JSONArray ended = new JSONArray();
        for (Object state : arguments.getJSONArray("states")) {
            byte[] body = state.toString().getBytes(StandardCharsets.UTF_8);
            Message message = new Message(arguments.getString("topic"), body);
            ended.add(producer.sendMessageInTransaction(message, null).getLocalTransactionState().name());
        }
        return ended;
    }

    private Object stop(JSONObject arguments) {
        producers.remove(arguments.getString("group")).shutdown();
        return null;
    }

    /** An open transaction is committed when the broker asks for it. */
    private static final class AsTheBodySays implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.valueOf(new String(message.getBody(), StandardCharsets.UTF_8));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
