package pagequeue;

import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/** Makes what writes the rows of a task, in the task. */
final class RowFileFactory implements DataWriterFactory, StreamingDataWriterFactory {
    private static final long serialVersionUID = 1L;
    private final String directory;
    private final String job;
    private final RowColumns columns;

    /**
     * @param directory of staged rows.
     * @param job name of the job's directory in it; of a stream without the number of the batch.
     * @param columns what the columns of a row are.
     */
    RowFileFactory(String directory, String job, RowColumns columns) {
        this.directory = directory;
        this.job = job;
        this.columns = columns;
    }

    public DataWriter createWriter(int partition, long task) {
        return new RowFile(directory, job, false, columns);
    }

    public DataWriter createWriter(int partition, long task, long batch) {
        return new RowFile(directory, job + "-" + batch, true, columns);
    }
}
