import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** A command line of mqadmin, run inside this JVM by the class that the shell script starts. */
final class AdminCommand {
    private AdminCommand() {
    }

    /** Arguments: arguments, the words after "mqadmin"; what it prints on stdout and stderr. */
    static synchronized Object run(String nameServers, JSONObject arguments) {
        List<String> words = arguments.getJSONArray("arguments").toJavaList(String.class);
        words.add("-n");
        words.add(nameServers);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        try {
            MQAdminStartup.main0(words.toArray(new String[0]), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }
}
