package hopline.lab;

import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/** One thread for what is due later. */
final class Later {
    private static final ScheduledExecutorService CLOCK = Executors.newSingleThreadScheduledExecutor(task -> {
        Thread thread = new Thread(task, "later");
        thread.setDaemon(true);
        return thread;
    });

    private Later() {}

    static void after(long millis, Runnable task) {
        CLOCK.schedule(task, millis, TimeUnit.MILLISECONDS);
    }

    static ScheduledFuture<?> every(long millis, Runnable task) {
        return CLOCK.scheduleAtFixedRate(task, millis, millis, TimeUnit.MILLISECONDS);
    }

    /** A thread of its own, for what waits. It does not keep the process. */
    static void thread(String name, Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.start();
    }
}
