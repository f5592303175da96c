package pagequeue;

/**
 * Tells damage from a page that retention took, or a recovery, since the read was planned, and from
 * a queue that is not the one that was planned.
 */
final class Gone {
    private Gone() {
    }

    /**
     * The error for what was found in a page.
     *
     * A page that was removed can be another one's by now: its file is used again, and this reader
     * holds no lock on it.
     */
    static Problem or(Place place, long page, long sequence, Problem damage) {
        Problem replaced = place.replaced();
        if (replaced != null) {
            return replaced;
        }
        if (page < place.headPage()) {
            return place.expired(sequence);
        }
        long tail = place.tail();
        if (tail >= 0 && sequence >= tail) {
            return Problem.of("SequenceOutOfRange", place.directory, "message " + sequence
                + " was there when the read was planned, and is not: it was cut off by a "
                + "recovery; read again", null).with("head_sequence", place.headSequence())
                .with("tail_sequence", tail);
        }
        return damage;
    }
}
