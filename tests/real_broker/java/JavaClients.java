import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * RocketMQ's own clients and mqadmin, told line by line what to do: one JVM serves a whole suite.
 *
 * <p>Argument: nameServers. A line on stdin is {"id": n, "op": name, ...}; each is done on a thread of its own and
 * answered on stdout by {"id": n, "result": ...} or {"id": n, "error": stack trace}. Ends with stdin.
 */
public final class JavaClients {
    interface Call {
        Object apply(JSONObject arguments) throws Exception;
    }

    private static final PrintStream ANSWERS = System.out;

    private JavaClients() {
    }

    public static void main(String[] args) throws Exception {
        Map<String, Call> calls = new HashMap<>();
        ProducerCalls.addTo(calls, args[0]);
        PushConsumerCalls.addTo(calls, args[0]);
        LitePullCalls.addTo(calls, args[0]);
        PullConsumerCalls.addTo(calls, args[0]);
        TransactionCalls.addTo(calls, args[0]);
        AdminCommand.addTo(calls, args[0]);
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject request = JSON.parseObject(line);
            threads.execute(() -> answer(request, calls.get(request.getString("op"))));
        }
        // Not through each client's shutdown(): it waits three seconds for its own sleeping threads.
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JSONObject request, Call call) {
        JSONObject answer = new JSONObject();
        answer.put("id", request.get("id"));
        try {
            answer.put("result", call.apply(request));
        } catch (Throwable problem) {
            StringWriter trace = new StringWriter();
            problem.printStackTrace(new PrintWriter(trace));
            answer.put("error", trace.toString());
        }
        String line = JSON.toJSONString(
            answer, SerializerFeature.WriteMapNullValue, SerializerFeature.BrowserCompatible);
        synchronized (ANSWERS) {
            ANSWERS.println(line);
            ANSWERS.flush();
        }
    }
}
