import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthGrpc;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A Java client on a mapping: {@code java Client TARGET SECONDS}.
 *
 * <p>TARGET is {@code unix:///run/user/1000/hopline/ledger.sock}, or {@code 127.0.0.1:7901} for a TCP mapping.
 */
public final class Client {
    /** For every method: UNAVAILABLE is tried again. Methods that must not run twice don't belong here. */
    private static final Map<String, ?> SERVICE_CONFIG = Map.of(
            "methodConfig",
            List.of(Map.of(
                    "name", List.of(Map.of()),
                    "retryPolicy",
                            Map.of(
                                    "maxAttempts", 5.0,
                                    "initialBackoff", "0.2s",
                                    "maxBackoff", "2s",
                                    "backoffMultiplier", 2.0,
                                    "retryableStatusCodes", List.of("UNAVAILABLE")))));

    public static void main(String[] args) throws InterruptedException {
        ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create())
                .defaultServiceConfig(SERVICE_CONFIG)
                .enableRetry();
        if (args[0].startsWith("unix:")) {
            // Else it would be the socket's path, which Node and Rust servers refuse.
            builder.overrideAuthority("localhost");
        }
        // One channel for the whole process, without keepalive.
        ManagedChannel channel = builder.build();
        HealthGrpc.HealthBlockingStub stub = HealthGrpc.newBlockingStub(channel);
        int good = 0;
        int failed = 0;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(args[1]));
        while (System.nanoTime() < end) {
            try {
                // The deadline covers all tries. It is a moment: a stub that keeps one is soon too late.
                stub.withDeadlineAfter(10, TimeUnit.SECONDS).check(HealthCheckRequest.getDefaultInstance());
                good++;
            } catch (StatusRuntimeException error) {
                failed++;
                System.err.println(error.getStatus());
            }
            Thread.sleep(100);
        }
        System.out.println(good + " good, " + failed + " failed");
        channel.shutdown().awaitTermination(5, TimeUnit.SECONDS);
    }
}
