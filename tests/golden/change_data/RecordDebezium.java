import io.debezium.engine.*;
import io.debezium.engine.format.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

/** Writes what the engine gives to a file: {"destination": …, "key": text, "value": text}, one a line. */
public class RecordDebezium {
    static String quote(String s) {
        if (s == null) return "null";
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') b.append('\\').append(c);
            else if (c < 32 || c > 126) b.append(String.format("\\u%04x", (int) c));
            else b.append(c);
        }
        return b.append('"').toString();
    }

    public static void main(String[] args) throws Exception {
        Properties props = new Properties();
        try (Reader in = new FileReader(args[0])) { props.load(in); }
        int seconds = Integer.parseInt(args[2]);
        PrintWriter out = new PrintWriter(new OutputStreamWriter(new FileOutputStream(args[1]), StandardCharsets.UTF_8), true);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(props)
            .using((success, message, error) -> { System.err.println("DONE " + success + " " + message); if (error != null) error.printStackTrace(); })
            .notifying(event -> {
                out.println("{\"destination\":" + quote(event.destination()) + ",\"key\":" + quote(event.key()) + ",\"value\":" + quote(event.value()) + "}");
            }).build();
        ExecutorService executor = Executors.newSingleThreadExecutor();
        executor.execute(engine);
        Thread.sleep(seconds * 1000L);
        engine.close();
        executor.shutdownNow();
        System.exit(0);
    }
}
