package hopline.lab;

import com.google.gson.JsonParseException;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/** The client: calls as stdin asks for them, on one channel. */
final class Client {
    /** How the channel pings; an interval of 0 is not at all. */
    record Keepalive(long intervalMs, long timeoutMs, boolean idle) {}

    /** One line of stdin, without the keys of {@link Arguments}. */
    private static final class Command {
        String op = "";
        String call = "";
        String method = "";
        long deadlineMs;
        long cancelAfterMs;
        long send;
        long sendRate;
        int readMost;
    }

    private static final Map<String, MethodDescriptor<byte[], byte[]>> METHODS = Map.of(
            "echo", Methods.ECHO,
            "never", Methods.NEVER,
            "deadline", Methods.DEADLINE,
            "fail", Methods.FAIL,
            "ticks", Methods.TICKS,
            "check", Methods.CHECK);

    private final ManagedChannel channel;
    private final Map<String, ClientCall<byte[], byte[]>> open = new ConcurrentHashMap<>();

    private Client(ManagedChannel channel) {
        this.channel = channel;
    }

    /** Obeys stdin until it ends or says `quit`. */
    static void run(String target, Keepalive keepalive, long window, boolean ownAuthority)
            throws IOException, InterruptedException {
        ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(target, InsecureChannelCredentials.create());
        if (target.startsWith("unix:") && !ownAuthority) {
            // The default is the socket's path, which Node and Rust servers refuse.
            builder.overrideAuthority("localhost");
        }
        if (keepalive.intervalMs > 0) {
            builder.keepAliveTime(keepalive.intervalMs, TimeUnit.MILLISECONDS)
                    .keepAliveTimeout(keepalive.timeoutMs, TimeUnit.MILLISECONDS)
                    .keepAliveWithoutCalls(keepalive.idle);
        }
        if (window > 0 && builder instanceof NettyChannelBuilder netty) {
            netty.flowControlWindow(Math.toIntExact(window));
        }
        Client client = new Client(builder.build());
        new Event("ready").emit();
        int code = 0;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try {
            for (String line = lines.readLine(); line != null && client.obey(line); line = lines.readLine()) {}
        } catch (JsonParseException | IllegalArgumentException error) {
            System.err.println(error.getMessage());
            code = 1;
        }
        client.channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
        System.exit(code);
    }

    /** False when the client is to end. */
    private boolean obey(String line) {
        Command command = Arguments.parse(line, Command.class);
        switch (command == null ? "" : command.op) {
            case "call" -> start(command, Arguments.parse(line));
            case "cancel" -> cancel(command.call);
            case "state" -> new Event("state").with("state", channel.getState(false).name()).emit();
            case "quit" -> {
                return false;
            }
            default -> throw new IllegalArgumentException("no such op: " + line);
        }
        return true;
    }

    private void start(Command command, Arguments arguments) {
        new Event("start").with("call", command.call).with("method", command.method).emit();
        MethodDescriptor<byte[], byte[]> method = METHODS.get(command.method);
        if (method == null) {
            Status none = Status.UNIMPLEMENTED.withDescription("no such method: " + command.method);
            end(command.call, none, new Ledger(), null);
            return;
        }
        CallOptions options = CallOptions.DEFAULT;
        if (command.deadlineMs > 0) {
            options = options.withDeadlineAfter(command.deadlineMs, TimeUnit.MILLISECONDS);
        }
        ClientCall<byte[], byte[]> call = channel.newCall(method, options);
        open.put(command.call, call);
        if (command.cancelAfterMs > 0) {
            Later.after(command.cancelAfterMs, () -> cancel(command.call));
        }
        new Running(call, method, command, arguments).begin();
    }

    private void cancel(String name) {
        ClientCall<byte[], byte[]> call = open.remove(name);
        if (call != null) {
            call.cancel("cancelled by the application", null);
        }
    }

    private static void end(String call, Status status, Ledger ledger, Double left) {
        // Node servers send a text with OK too.
        String message = status.isOk() || status.getDescription() == null ? "" : status.getDescription();
        Event end = new Event("end")
                .with("call", call)
                .with("status", status.getCode().name())
                .with("message", message);
        if (left != null) {
            end.with("left_ms", left);
        }
        ledger.emit(end);
    }

    /** One call from its start to its end. */
    private final class Running extends ClientCall.Listener<byte[]> {
        private final ClientCall<byte[], byte[]> call;
        private final MethodDescriptor<byte[], byte[]> method;
        private final Command command;
        private final Arguments arguments;
        private final Ledger ledger = new Ledger();
        private final Gate gate = new Gate();
        private ScheduledFuture<?> watch;
        private int messages;
        private Double left;

        Running(
                ClientCall<byte[], byte[]> call,
                MethodDescriptor<byte[], byte[]> method,
                Command command,
                Arguments arguments) {
            this.call = call;
            this.method = method;
            this.command = command;
            this.arguments = arguments;
        }

        void begin() {
            Metadata headers = new Metadata();
            headers.put(Methods.CALL, command.call);
            headers.put(Methods.ARGS, arguments.json());
            if (method == Methods.CHECK) {
                watch = ledger.watch(command.call);
            }
            call.start(this, headers);
            // A second one tells the library that a unary call has an answer too many.
            call.request(method.getType() == MethodType.UNARY ? 2 : 1);
            if (method == Methods.CHECK) {
                Later.thread("pour " + command.call, this::pour);
                return;
            }
            byte[] request = new byte[0];
            if (method == Methods.ECHO) {
                request = new Source(arguments.seed).take(arguments.bytes);
                ledger.sent(request);
            }
            try {
                call.sendMessage(request);
                call.halfClose();
            } catch (IllegalStateException error) {
                // Cancelled already, by `cancel_after_ms`; `onClose` says so.
            }
        }

        private void pour() {
            Gate.Sink sink = new Gate.Sink() {
                @Override
                public boolean ready() {
                    return call.isReady();
                }

                @Override
                public void send(byte[] message) {
                    call.sendMessage(message);
                }
            };
            try {
                Source source = new Source(arguments.seed);
                if (gate.pour(source, ledger, command.send, arguments.chunk, command.sendRate, sink)) {
                    call.halfClose();
                }
            } catch (IllegalStateException | InterruptedException error) {
                // Cancelled between the look and the sending; `onClose` says so.
            }
        }

        @Override
        public void onReady() {
            gate.ready();
        }

        @Override
        public void onMessage(byte[] message) {
            if (method == Methods.ECHO || method == Methods.CHECK) {
                ledger.received(message);
            } else if (method == Methods.DEADLINE) {
                left = number(new String(message, StandardCharsets.US_ASCII));
            } else if (method == Methods.TICKS) {
                messages++;
                new Event("message").with("call", command.call).with("n", messages).emit();
            }
            boolean enough = method == Methods.TICKS && messages == command.readMost;
            if (method.getType() != MethodType.UNARY && !enough) {
                call.request(1);
            }
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            open.remove(command.call, call);
            gate.end();
            if (watch != null) {
                watch.cancel(false);
            }
            end(command.call, status, ledger, left);
        }

        /** Null where the handler saw no deadline. */
        private static Double number(String text) {
            try {
                return Double.valueOf(text);
            } catch (NumberFormatException none) {
                return null;
            }
        }
    }
}
