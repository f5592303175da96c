package pagequeue;

import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/** Makes what writes the rows of a task, in the task. */
final class RowFileFactory implements DataWriterFactory, StreamingDataWriterFactory {
    private static final long serialVersionUID = 1L;
    private final String directory;
    private final String job;
    private final int payload;
    private final boolean isText;
    private final int time;

    /**
     * @param directory of staged rows.
     * @param job name of the job's directory in it; of a stream without the number of the batch.
     * @param payload place of this column in a row.
     * @param isText whether it has text.
     * @param time place of this column; -1: there is none.
     */
    RowFileFactory(String directory, String job, int payload, boolean isText, int time) {
        this.directory = directory;
        this.job = job;
        this.payload = payload;
        this.isText = isText;
        this.time = time;
    }

    public DataWriter createWriter(int partition, long task) {
        return new RowFile(directory, job, false, payload, isText, time);
    }

    public DataWriter createWriter(int partition, long task, long batch) {
        return new RowFile(directory, job + "-" + batch, true, payload, isText, time);
    }
}
