package pagequeue;

/** What gives rows of one range of messages, batch by batch. */
interface RowSource {
    /** Fill the rows with the next ones; false: there are no more. */
    boolean next(Rows rows);

    void close();
}
