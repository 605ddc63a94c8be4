import org.apache.rocketmq.client.ClientConfig;

/** Clients that wait for a busy machine: with RocketMQ's own time-outs they would do something else then. */
final class Patience {
    static final int CALL_MILLIS = 60_000;
    /** For what a timer of a client is not to do among the requests that are compared with recorded ones. */
    static final int NEVER_MILLIS = 86_400_000;

    private Patience() {
    }

    /** Heartbeats, member lists and routes have three seconds otherwise. */
    static void teach(ClientConfig client) {
        client.setMqClientApiTimeout(CALL_MILLIS);
    }
}
