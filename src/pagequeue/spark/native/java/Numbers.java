package pagequeue;

/** Rows of which only sequences are wanted: no file is opened. */
final class Numbers implements RowSource {
    private long at;
    private final long end;

    Numbers(long first, long end) {
        this.at = first;
        this.end = end;
    }

    public boolean next(Rows rows) {
        rows.first = at;
        rows.count = (int) Math.min(Rows.MOST, end - at);
        at += rows.count;
        return rows.count > 0;
    }

    public void close() {
    }
}
