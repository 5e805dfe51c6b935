package hopline.lab;

import io.grpc.internal.GrpcUtil;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/**
 * The lab's gRPC application in Java: a server and a client in one program. The command line and the lines that it
 * prints are those of ../README.md, the same in every language.
 */
public final class Main {
    private Main() {}

    public static void main(String[] words) throws Exception {
        String role = words.length > 0 ? words[0] : "";
        switch (role) {
            case "server" -> {
                Map<String, String> flags = flags(
                        words,
                        Set.of("listen", "max-streams", "max-age-ms", "max-age-grace-ms"),
                        Set.of("permit-keepalive"));
                Server.serve(
                        flags.getOrDefault("listen", "127.0.0.1:0"),
                        flags.containsKey("permit-keepalive"),
                        number(flags, "max-streams", 0),
                        number(flags, "max-age-ms", 0),
                        number(flags, "max-age-grace-ms", 0));
            }
            case "client" -> {
                Map<String, String> flags = flags(
                        words,
                        Set.of("target", "keepalive-ms", "keepalive-timeout-ms", "window"),
                        Set.of("keepalive-idle", "own-authority"));
                Client.Keepalive keepalive = new Client.Keepalive(
                        number(flags, "keepalive-ms", 0),
                        number(flags, "keepalive-timeout-ms", 20_000),
                        flags.containsKey("keepalive-idle"));
                if (!flags.containsKey("target")) {
                    usage("--target is missing");
                }
                long window = number(flags, "window", 0);
                Client.run(flags.get("target"), keepalive, window, flags.containsKey("own-authority"));
            }
            case "version" -> {
                flags(words, Set.of(), Set.of());
                new Event("version")
                        .with("impl", "java")
                        .with("library", "grpc-java " + GrpcUtil.getGrpcBuildVersion().getImplementationVersion())
                        .with("runtime", "openjdk " + Runtime.version())
                        .emit();
            }
            default -> usage("no such role: " + role);
        }
    }

    /** Flags with a value and flags without one; anything else ends the program. */
    private static Map<String, String> flags(String[] words, Set<String> valued, Set<String> bare) {
        Map<String, String> flags = new HashMap<>();
        for (int at = 1; at < words.length; at++) {
            String name = words[at].startsWith("--") ? words[at].substring(2) : "";
            if (bare.contains(name)) {
                flags.put(name, "");
            } else if (valued.contains(name) && at + 1 < words.length) {
                at++;
                flags.put(name, words[at]);
            } else {
                usage("unexpected argument: " + words[at]);
            }
        }
        return flags;
    }

    private static long number(Map<String, String> flags, String name, long otherwise) {
        try {
            return flags.containsKey(name) ? Long.parseLong(flags.get(name)) : otherwise;
        } catch (NumberFormatException error) {
            usage("--" + name + " is no number: " + flags.get(name));
            return otherwise;
        }
    }

    private static void usage(String why) {
        System.err.println(why + "\nusage: server|client|version [flags], see lab/apps/README.md");
        System.exit(2);
    }
}
