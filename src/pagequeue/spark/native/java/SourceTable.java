package pagequeue;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Queues as a table and a stream: read and written here where the native reader and writer can, else
 * by the Python source.
 *
 * The driver's Python decides which at first use.
 */
final class SourceTable implements SupportsRead, SupportsWrite {
    /** The name of the Python source. */
    private static final String NAME = "pagequeue";

    private final StructType schema;
    private final Map properties;
    private Table python;
    private String decided;
    private QueueTable own;

    SourceTable(StructType schema, Map properties) {
        this.schema = schema;
        this.properties = properties;
    }

    /** Options as text, `name=value&...`, percent-encoded. */
    static String words(Map options) {
        StringBuilder text = new StringBuilder();
        Iterator all = options.entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry one = (Map.Entry) all.next();
            text.append(text.length() == 0 ? "" : "&").append(quoted(one.getKey())).append('=')
                .append(quoted(one.getValue()));
        }
        return text.toString();
    }

    private static String quoted(Object text) {
        return URLEncoder.encode((String) text, StandardCharsets.UTF_8);
    }

    private synchronized Table python() {
        if (python == null) {
            PythonDataSourceV2 source = new PythonDataSourceV2();
            source.setShortName(NAME);
            python = source.getTable(schema, new Transform[0], properties);
        }
        return python;
    }

    /** @param options of this use; in SQL they are without those of the table. */
    public synchronized ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        Map all = new TreeMap(String.CASE_INSENSITIVE_ORDER);
        all.putAll(properties);
        all.putAll(options.asCaseSensitiveMap());
        String given = words(all);
        if (!given.equals(decided)) {
            String told;
            try {
                told = Planner.ask("table\n" + schema.json() + "\n" + given);
            } catch (Problem error) {
                throw error.ofSpark();
            }
            own = told.isEmpty() ? null : new QueueTable(schema, told);
            decided = given;
        }
        return own != null ? own.newScanBuilder()
            : ((SupportsRead) python()).newScanBuilder(new CaseInsensitiveStringMap(all));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        String given = words(properties) + "\n" + words(info.options().asCaseSensitiveMap());
        String told = QueueWrite.ask("choose", given, info.schema().json());
        return told.isEmpty() ? ((SupportsWrite) python()).newWriteBuilder(info)
            : new QueueWrite(info.schema(), given, info.queryId(), told);
    }

    public String name() {
        return NAME;
    }

    public String toString() {
        return NAME;
    }

    public StructType schema() {
        return schema;
    }

    public Set capabilities() {
        return python().capabilities();
    }
}
