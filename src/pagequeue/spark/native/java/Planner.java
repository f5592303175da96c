package pagequeue;

import java.util.function.Function;

/** The driver's Python, which opens queues and plans reads. */
public final class Planner {
    private static volatile Function python;

    private Planner() {
    }

    /** @param planner takes a request and returns its result, or an error after a `!`. */
    public static void set(Function planner) {
        python = planner;
    }

    static String ask(String request) {
        Function planner = python;
        if (planner == null) {
            throw Problem.of("InvalidOption", null, "the native reader has no driver in Python "
                + "here", "read with pagequeue.spark.read");
        }
        String answer = (String) planner.apply(request);
        if (answer.startsWith("!")) {
            throw Problem.ofPython(answer.substring(1));
        }
        return answer;
    }
}
