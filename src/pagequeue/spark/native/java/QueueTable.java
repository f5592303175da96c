package pagequeue;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;

/** The messages retained when the frame is first used; of a stream, also those that follow. */
final class QueueTable {
    static final String NAME = "pagequeue (native reader)";

    final StructType schema;
    /** The options as given to Python, quoted. */
    final String given;
    final int recordBytes;
    /** What is checked: what the query uses, what the columns need, or all. */
    final String check;
    /** What is read of each message, whatever the query uses. */
    final int least;
    private final Map specs = new HashMap();
    private String snapshot = "";

    /** @param told lines: columns, size of a record, what is checked, options. */
    QueueTable(StructType schema, String told) {
        this.schema = schema;
        String[] lines = told.split("\n");
        String[] columns = lines[0].split(" ");
        for (int i = 0; i < columns.length; i++) {
            int at = columns[i].indexOf(':');
            specs.put(Place.text(columns[i].substring(0, at)), columns[i].substring(at + 1));
        }
        recordBytes = Integer.parseInt(lines[1]);
        check = lines[2];
        given = lines[3];
        least = check.equals("used") ? 0 : check.equals("all") ? Column.PAYLOADS : need(schema);
    }

    /** What a column is; null: there is none of this name. */
    String spec(String column) {
        return (String) specs.get(column);
    }

    /** What must be read of each message for these columns. */
    private int need(StructType of) {
        int need = 0;
        String[] specs = specs(of);
        for (int i = 0; i < specs.length; i++) {
            need = Math.max(need, Column.need(specs[i]));
        }
        return need;
    }

    /** What is read of each message in a query that uses these columns. */
    int needed(StructType used) {
        return Math.max(least, need(used));
    }

    /** What each column of a schema is. */
    private String[] specs(StructType of) {
        String[] specs = new String[of.length()];
        for (int i = 0; i < specs.length; i++) {
            specs[i] = spec(of.apply(i).name());
        }
        return specs;
    }

    private boolean hasFields(StructType of) {
        String[] specs = specs(of);
        for (int i = 0; i < specs.length; i++) {
            if (specs[i].length() > 1) {
                return true;
            }
        }
        return false;
    }

    /** What makes the readers of its rows. */
    Factory factory(StructType used) {
        boolean checksSizes = hasFields(check.equals("used") ? used : schema);
        return new Factory(used, specs(used), checksSizes ? recordBytes : 0, false);
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

    ScanBuilder newScanBuilder() {
        return new Builder(this, schema);
    }
}
