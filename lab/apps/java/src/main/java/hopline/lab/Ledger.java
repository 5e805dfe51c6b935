package hopline.lab;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.concurrent.ScheduledFuture;

/** What both ends of a checked stream know of it: bytes and SHA-256 of each direction. */
final class Ledger {
    private final Tally sent = new Tally();
    private final Tally received = new Tally();

    void sent(byte[] bytes) {
        sent.add(bytes);
    }

    void received(byte[] bytes) {
        received.add(bytes);
    }

    /** Prints an event with the totals. Of two events the one that is printed later counts no less. */
    synchronized void emit(Event event) {
        sent.into(event, "sent");
        received.into(event, "received");
        event.emit();
    }

    /** Prints the running totals twice a second until it is cancelled. */
    ScheduledFuture<?> watch(String call) {
        return Later.every(500, () -> emit(new Event("progress").with("call", call)));
    }

    /** Counts and hashes one direction. */
    private static final class Tally {
        private final MessageDigest hash = sha256();
        private long count;

        synchronized void add(byte[] bytes) {
            count += bytes.length;
            hash.update(bytes);
        }

        synchronized void into(Event event, String key) {
            event.with(key, count);
            try {
                MessageDigest soFar = (MessageDigest) hash.clone();
                event.with(key + "_sha256", HexFormat.of().formatHex(soFar.digest()));
            } catch (CloneNotSupportedException error) {
                throw new IllegalStateException("the JDK's SHA-256 can be cloned", error);
            }
        }

        private static MessageDigest sha256() {
            try {
                return MessageDigest.getInstance("SHA-256");
            } catch (NoSuchAlgorithmException error) {
                throw new IllegalStateException("every JDK has SHA-256", error);
            }
        }
    }
}
