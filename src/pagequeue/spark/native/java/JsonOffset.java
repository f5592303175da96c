package pagequeue;

import org.apache.spark.sql.connector.read.streaming.Offset;

/** An offset as the Python source writes it: the next sequence of each queue, by its name. */
final class JsonOffset extends Offset {
    private final String json;

    JsonOffset(String json) {
        this.json = json;
    }

    public String json() {
        return json;
    }
}
