package hopline.lab;

import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** Where a thread that sends waits: for the call to take a message, or for a time; never longer than the call lives. */
final class Gate {
    private boolean ended;

    /** The call may be ready for another message: whoever waits looks again. */
    synchronized void ready() {
        notifyAll();
    }

    synchronized void end() {
        ended = true;
        notifyAll();
    }

    /** Waits until the call is ready; false when it has ended. */
    synchronized boolean awaitReady(BooleanSupplier ready) throws InterruptedException {
        while (!ended && !ready.getAsBoolean()) {
            wait();
        }
        return !ended;
    }

    /** Waits until this time of {@link System#nanoTime}; false when the call has ended. */
    synchronized boolean awaitTime(long due) throws InterruptedException {
        for (long left = due - System.nanoTime(); !ended && left > 0; left = due - System.nanoTime()) {
            // At least a millisecond: 0 would wait for ever.
            wait(Math.max(1, TimeUnit.NANOSECONDS.toMillis(left)));
        }
        return !ended;
    }

    /** A direction of a call that takes messages. */
    interface Sink {
        boolean ready();

        void send(byte[] message);
    }

    /** Sends a stream in chunks, at most `rate` bytes a second (0: no limit); false when the call has ended. */
    boolean pour(Source source, Ledger ledger, long total, int chunk, long rate, Sink sink)
            throws InterruptedException {
        long began = System.nanoTime();
        for (long sent = 0; sent < total; ) {
            byte[] bytes = source.take((int) Math.min(Math.max(chunk, 1), total - sent));
            if (!awaitReady(sink::ready)) {
                return false;
            }
            // Counted before it is given away: what the other end has got was always sent.
            ledger.sent(bytes);
            sink.send(bytes);
            sent += bytes.length;
            long due = rate > 0 ? began + (long) ((double) sent / rate * 1e9) : began;
            if (!awaitTime(due)) {
                return false;
            }
        }
        return true;
    }
}
