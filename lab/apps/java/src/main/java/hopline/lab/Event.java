package hopline.lab;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** One line of stdout: what happened, and when. */
final class Event {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final FileOutputStream OUT = new FileOutputStream(FileDescriptor.out);

    private final JsonObject body = new JsonObject();

    Event(String kind) {
        body.addProperty("event", kind);
    }

    Event with(String key, String text) {
        body.addProperty(key, text);
        return this;
    }

    Event with(String key, Number number) {
        JsonElement value = number == null ? JsonNull.INSTANCE : new JsonPrimitive(number);
        body.add(key, value);
        return this;
    }

    /** Prints it. System.nanoTime is CLOCK_MONOTONIC on Linux: the same for all processes of the machine. */
    void emit() {
        with("mono_ms", millis(System.nanoTime() / 1_000));
        with("wall_ms", millis(ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now())));
        byte[] line = (GSON.toJson(body) + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            try {
                OUT.write(line);
            } catch (IOException error) {
                // Nobody listens any more. No exit handlers: one might want this lock.
                Runtime.getRuntime().halt(1);
            }
        }
    }

    /** Milliseconds with fractions, never in the notation with an exponent. */
    static BigDecimal millis(long micros) {
        return BigDecimal.valueOf(micros, 3);
    }
}
