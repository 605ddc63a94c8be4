import com.alibaba.fastjson2.*;
import com.alibaba.otter.canal.connector.core.producer.MQMessageUtils;
import com.alibaba.otter.canal.connector.core.util.CanalMessageSerializerUtil;
import com.alibaba.otter.canal.parse.inbound.mysql.MysqlConnection;
import com.alibaba.otter.canal.parse.inbound.mysql.dbsync.*;
import com.alibaba.otter.canal.parse.driver.mysql.packets.*;
import com.alibaba.otter.canal.protocol.*;
import com.taobao.tddl.dbsync.binlog.LogEvent;
import java.io.*;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

/** Parses a binlog with Canal's own classes; writes each entry as CanalRocketMQProducer would send it. */
public class RecordCanal {
    public static void main(String[] args) throws Exception {
        String out = args[0], end = args[1], gtid = args.length > 2 ? args[2] : null;
        InetSocketAddress at = new InetSocketAddress("127.0.0.1", 33306);
        MysqlConnection meta = new MysqlConnection(at, "root", "");
        meta.connect();
        MysqlConnection dump = new MysqlConnection(at, "root", "");
        dump.setSlaveId(4711);
        dump.connect();
        LogEventConvert convert = new LogEventConvert();
        convert.setCharset(StandardCharsets.UTF_8);
        convert.setTableMetaCache(new TableMetaCache(meta, null));
        ThreadPoolExecutor pool = new ThreadPoolExecutor(1, 1, 1, TimeUnit.SECONDS, new ArrayBlockingQueue<>(100));
        PrintWriter writer = new PrintWriter(new OutputStreamWriter(new FileOutputStream(out), StandardCharsets.UTF_8), true);
        long[] id = {0};
        com.alibaba.otter.canal.parse.inbound.SinkFunction<LogEvent> sink = event -> {
            try {
                CanalEntry.Entry entry = convert.parse(event, false);
                if (entry != null) write(writer, entry, pool, ++id[0]);
            } catch (Exception e) { e.printStackTrace(); writer.println("{\"error\":" + JSON.toJSONString(String.valueOf(e)) + "}"); }
            return event.getLogPos() < Long.parseLong(end);
        };
        if (gtid == null) dump.dump("mysql-bin.000002", 4L, sink);
        else dump.dump(MariaGTIDSet.parse(gtid), sink);
        System.exit(0);
    }

    static void write(PrintWriter writer, CanalEntry.Entry entry, ThreadPoolExecutor pool, long id) throws Exception {
        Message message = new Message(id, new ArrayList<>(List.of(entry)));
        byte[] bytes = CanalMessageSerializerUtil.serializer(message, false);
        MQMessageUtils.EntryRowData[] datas = MQMessageUtils.buildMessageData(message, pool);
        List<FlatMessage> flats = MQMessageUtils.messageConverter(datas, id);
        List<String> texts = new ArrayList<>();
        for (FlatMessage flat : flats)
            texts.add(new String(JSON.toJSONBytes(flat, JSONWriter.Feature.WriteNulls, JSONWriter.Feature.LargeObject), StandardCharsets.UTF_8));
        JSONObject row = new JSONObject();
        row.put("entry", String.valueOf(entry.getEntryType()));
        row.put("event", String.valueOf(entry.getHeader().getEventType()));
        row.put("table", entry.getHeader().getTableName());
        row.put("protobuf", Base64.getEncoder().encodeToString(bytes));
        row.put("flat", texts.isEmpty() ? null : texts.get(0));
        writer.println(row.toString(JSONWriter.Feature.WriteNulls));
    }
}
