package hopline.lab;

import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;

/** What a client asks of a stream, in the metadata `lab-args`; in a command the same keys stand beside others. */
final class Arguments {
    private static final Gson GSON = new GsonBuilder()
            .setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES)
            .create();

    long everyMs;
    int bytes;
    /** 32 bits without a sign. */
    long seed;
    long receive;
    int chunk;
    long receiveRate;

    /** Throws {@link com.google.gson.JsonParseException} when the text is no such JSON. */
    static Arguments parse(String json) {
        return json == null ? new Arguments() : parse(json, Arguments.class);
    }

    static <T> T parse(String json, Class<T> type) {
        return GSON.fromJson(json, type);
    }

    String json() {
        return GSON.toJson(this);
    }
}
