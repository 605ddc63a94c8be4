import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** The commands of mqadmin, run inside this JVM; one begins while others still shut down, which takes three seconds. */
final class AdminCommand extends MQAdminStartup {
    private static final PrintStream LOG = System.err;
    private static final InheritableThreadLocal<OutputStream> PRINTED = new InheritableThreadLocal<>();

    private AdminCommand() {
    }

    static void addTo(Map<String, JavaClients.Call> calls, String nameServers) {
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, nameServers);
        initCommand();
        capturePrints();
        calls.put("mqadmin", arguments -> begin(arguments.getJSONArray("arguments")).get());
        calls.put("mqadmin.all", AdminCommand::runAll);
    }

    /** From now on what a thread prints goes to its own command's result, else to the log. */
    private static void capturePrints() {
        PrintStream byThread = new PrintStream(new OutputStream() {
            @Override
            public void write(int octet) {
                write(new byte[] {(byte) octet}, 0, 1);
            }

            @Override
            public void write(byte[] octets, int from, int length) {
                OutputStream printed = PRINTED.get();
                if (printed instanceof ByteArrayOutputStream) {
                    ((ByteArrayOutputStream) printed).write(octets, from, length);
                } else {
                    LOG.write(octets, from, length);
                }
            }
        }, true, StandardCharsets.UTF_8);
        System.setOut(byThread);
        System.setErr(byThread);
    }

    /** Arguments: commands, each a list of words; what they print, done one after another. */
    private static Object runAll(JSONObject arguments) throws Exception {
        List<Future<String>> begun = new ArrayList<>();
        for (Object words : arguments.getJSONArray("commands")) {
            begun.add(begin((JSONArray) words));
        }
        JSONArray printed = new JSONArray();
        for (Future<String> each : begun) {
            printed.add(each.get());
        }
        return printed;
    }

    /** Do what the words after "mqadmin" say; what it prints on stdout and stderr, once its client is shut down. */
    private static Future<String> begin(JSONArray arguments) throws Exception {
        String[] words = arguments.toArray(new String[0]);
        SubCommand command = SUB_COMMANDS.stream()
            .filter(each -> each.commandName().equalsIgnoreCase(words[0])).findFirst().orElseThrow();
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        String[] rest = Arrays.copyOfRange(words, 1, words.length);
        CommandLine commandLine = ServerUtil.parseCmdLine("mqadmin " + words[0], rest, options, new DefaultParser());
        FutureTask<String> execution = new FutureTask<>(() -> {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PRINTED.set(printed);
            command.execute(commandLine, options, null);
            return printed.toString(StandardCharsets.UTF_8);
        });
        runUntilShutdown(execution);
        return execution;
    }

    /** Return when the command has done its work: two that begin in one millisecond would share one client. */
    private static synchronized void runUntilShutdown(Runnable execution) throws InterruptedException {
        Thread thread = new Thread(execution);
        thread.start();
        do {
            Thread.sleep(1);
        } while (thread.isAlive() && !isShuttingDown(thread));
    }

    private static boolean isShuttingDown(Thread thread) {
        return Arrays.stream(thread.getStackTrace()).anyMatch(
            frame -> frame.getMethodName().equals("shutdown") && frame.getClassName().endsWith(".DefaultMQAdminExt"));
    }
}
