package pagequeue;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The messages retained when the frame is first used. */
final class QueueTable implements SupportsRead {
    private final StructType schema;
    /** The options as given to Python, quoted. */
    final String given;
    final int recordBytes;
    /** Whether each frame of the wanted messages is read, whatever the query needs of it. */
    final boolean checksAll;
    private final Map specs = new HashMap();
    private String snapshot = "";

    QueueTable(StructType schema, CaseInsensitiveStringMap options) {
        this.schema = schema;
        given = options.get("given");
        recordBytes = options.getInt("recordBytes", 0);
        checksAll = options.getBoolean("checksAll", false);
        String[] columns = options.get("columns").split(" ");
        for (int i = 0; i < columns.length; i++) {
            int at = columns[i].indexOf(':');
            specs.put(Place.text(columns[i].substring(0, at)), columns[i].substring(at + 1));
        }
    }

    /** What a column is; null: there is none of this name. */
    String spec(String column) {
        return (String) specs.get(column);
    }

    /** What was retained at first use; empty: it was not used. */
    synchronized String snapshot() {
        return snapshot;
    }

    synchronized void keep(String first) {
        if (snapshot.isEmpty()) {
            snapshot = first;
        }
    }

    public String name() {
        return "pagequeue (native reader)";
    }

    public StructType schema() {
        return schema;
    }

    public Set capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new Builder(this, schema);
    }
}
