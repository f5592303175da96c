package pagequeue;

import org.apache.spark.sql.connector.read.InputPartition;

/** What one task reads: lines of the plan. */
final class Part implements InputPartition {
    private static final long serialVersionUID = 1L;
    final String lines;

    Part(String lines) {
        this.lines = lines;
    }

    public String[] preferredLocations() {
        return new String[0];
    }
}
