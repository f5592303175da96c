package pagequeue;

import java.util.function.Function;
import py4j.ClientServerConnection;
import py4j.Py4JPythonClient;
import py4j.Py4JPythonClientPerThread;

/** The driver's Python, which opens queues and plans reads. */
public final class Planner {
    private static volatile Function python;
    private static volatile Py4JPythonClient client;

    private Planner() {
    }

    /**
     * @param planner takes a request and returns its result, or an error after a `!`,
     *     or what is a bug after two.
     * @param itsClient py4j's, which calls it.
     */
    public static void set(Function planner, Py4JPythonClient itsClient) {
        python = planner;
        client = itsClient;
    }

    /** The connection to Python that py4j has for this thread; null: none, or one for all. */
    private static ClientServerConnection connection() {
        return client instanceof Py4JPythonClientPerThread
            ? ((Py4JPythonClientPerThread) client).getPerThreadConnection() : null;
    }

    /**
     * Called last by a thread that asked and stayed: closes the connection that py4j made for it.
     *
     * Else it is open, with a thread in Python, after this thread has ended.
     */
    static void leave() {
        ClientServerConnection own = connection();
        if (own != null && own.isInitiatedFromClient()) {
            ((Py4JPythonClientPerThread) client).setPerThreadConnection(null);
            own.shutdown();
        }
    }

    /** Ask once: Spark plans in threads of its own, too, which end without telling. */
    static String ask(String request) {
        boolean isNew = connection() == null;
        try {
            return askAndStay(request);
        } finally {
            if (isNew) {
                leave();
            }
        }
    }

    /** Ask, and keep this thread's connection for more, until `leave`. */
    static String askAndStay(String request) {
        Function planner = python;
        if (planner == null) {
            throw Problem.of("InvalidOption", null, "the native reader has no driver in Python "
                + "here", "read with pagequeue.spark.read");
        }
        String answer = (String) planner.apply(request);
        if (answer.startsWith("!!")) {
            throw new IllegalStateException(answer.substring(2));
        }
        if (answer.startsWith("!")) {
            throw Problem.ofPython(answer.substring(1));
        }
        return answer;
    }
}
