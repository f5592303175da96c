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

    /**
     * Called last by a thread that ends: closes the connection that py4j made for it.
     *
     * Else it is open, with a thread in Python, until a collection of garbage.
     */
    static void leave() {
        if (client instanceof Py4JPythonClientPerThread) {
            Py4JPythonClientPerThread each = (Py4JPythonClientPerThread) client;
            ClientServerConnection own = each.getPerThreadConnection();
            if (own != null && own.isInitiatedFromClient()) {
                each.setPerThreadConnection(null);
                own.shutdown();
            }
        }
    }

    static String ask(String request) {
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
