package hopline.lab;

import com.google.gson.JsonParseException;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.ServerCall;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;

/** The server: a handler for each of the methods. */
final class Server {
    private Server() {}

    /** Serves until the process ends. */
    static void serve(String listen, boolean permit, long streams, long ageMs, long graceMs)
            throws IOException, InterruptedException {
        int colon = listen.lastIndexOf(':');
        String host = listen.substring(0, Math.max(colon, 0)).replaceAll("[\\[\\]]", "");
        int port = Integer.parseInt(listen.substring(colon + 1));
        NettyServerBuilder builder =
                NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getByName(host), port));
        if (permit) {
            builder.permitKeepAliveTime(1, TimeUnit.SECONDS).permitKeepAliveWithoutCalls(true);
        }
        if (streams > 0) {
            builder.maxConcurrentCallsPerConnection(Math.toIntExact(streams));
        }
        if (ageMs > 0) {
            builder.maxConnectionAge(ageMs, TimeUnit.MILLISECONDS);
        }
        if (graceMs > 0) {
            builder.maxConnectionAgeGrace(graceMs, TimeUnit.MILLISECONDS);
        }
        ServerServiceDefinition.Builder service = ServerServiceDefinition.builder(Methods.SERVICE);
        add(service, Methods.ECHO, Echo::new);
        add(service, Methods.NEVER, Never::new);
        add(service, Methods.DEADLINE, Left::new);
        add(service, Methods.FAIL, Fail::new);
        add(service, Methods.TICKS, Ticks::new);
        add(service, Methods.CHECK, Check::new);
        io.grpc.Server server = builder.addService(service.build()).build().start();
        String at = host.contains(":") ? "[" + host + "]" : host;
        new Event("listening").with("address", at + ":" + server.getPort()).emit();
        server.awaitTermination();
    }

    private interface Handler {
        Visit begin(ServerCall<byte[], byte[]> call, String name, Arguments arguments);
    }

    private static void add(
            ServerServiceDefinition.Builder service, MethodDescriptor<byte[], byte[]> method, Handler handler) {
        service.addMethod(method, (call, headers) -> {
            Arguments arguments;
            try {
                arguments = Arguments.parse(headers.get(Methods.ARGS));
            } catch (JsonParseException error) {
                call.close(Status.INVALID_ARGUMENT.withDescription(error.getMessage()), new Metadata());
                return new ServerCall.Listener<>() {};
            }
            String name = headers.get(Methods.CALL);
            Visit visit = handler.begin(call, name == null ? "" : name, arguments);
            visit.begin();
            return visit;
        });
    }

    /** One call at the server: says that its handler began, and once why it ended. */
    private abstract static class Visit extends ServerCall.Listener<byte[]> implements Gate.Sink {
        final ServerCall<byte[], byte[]> call;
        final Arguments arguments;
        final Ledger ledger = new Ledger();
        final Gate gate = new Gate();
        final String name;
        private final String method;
        private final Context context = Context.current();
        private final AtomicBoolean ended = new AtomicBoolean();
        private byte[] request = new byte[0];

        Visit(ServerCall<byte[], byte[]> call, String name, Arguments arguments) {
            this.call = call;
            this.name = name;
            this.arguments = arguments;
            method = call.getMethodDescriptor().getBareMethodName().toLowerCase(Locale.ROOT);
        }

        void begin() {
            Long left = leftMicros();
            new Event("handler")
                    .with("call", name)
                    .with("method", method)
                    .with("left_ms", left == null ? null : Event.millis(left))
                    .emit();
            // Also when the connection breaks or the deadline passes; and after every call, when it says nothing new.
            context.addListener(
                    gone -> end(gone.cancellationCause() instanceof TimeoutException ? "deadline" : "canceled"),
                    Runnable::run);
            call.request(1);
        }

        /** What the deadline leaves; null without one. */
        final Long leftMicros() {
            Deadline deadline = context.getDeadline();
            return deadline == null ? null : deadline.timeRemaining(TimeUnit.MICROSECONDS);
        }

        /** Says why the handler ended, if nobody has; true if it was said now. */
        final boolean end(String reason) {
            if (!ended.compareAndSet(false, true)) {
                return false;
            }
            gate.end();
            over();
            Event event = new Event("handler_end").with("call", name).with("method", method).with("reason", reason);
            ledger.emit(event);
            return true;
        }

        /** The call is over. */
        void over() {}

        /** The handler of a unary or server-streaming method. */
        abstract void handle(byte[] request) throws InterruptedException;

        /** A handler has come to its own end. */
        final void answer(byte[] response) {
            if (end("returned")) {
                call.sendHeaders(new Metadata());
                call.sendMessage(response);
                close();
            }
        }

        final void close() {
            try {
                call.close(Status.OK, new Metadata());
            } catch (IllegalStateException gone) {
                // Cancelled meanwhile: the client hears it from elsewhere.
            }
        }

        @Override
        public void onMessage(byte[] message) {
            request = message;
        }

        @Override
        public void onHalfClose() {
            try {
                handle(request);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public void onReady() {
            gate.ready();
        }

        @Override
        public boolean ready() {
            return call.isReady();
        }

        @Override
        public void send(byte[] message) {
            call.sendMessage(message);
        }

        /** Runs what waits on a thread of its own: the library tells a handler nothing while it is inside of it. */
        final void aside(Waiting task) {
            Later.thread(method + " " + name, () -> {
                try {
                    task.run();
                } catch (IllegalStateException | InterruptedException error) {
                    // Cancelled between the look and the sending; the context's listener says so.
                }
            });
        }

        interface Waiting {
            void run() throws InterruptedException;
        }
    }

    private static final class Echo extends Visit {
        Echo(ServerCall<byte[], byte[]> call, String name, Arguments arguments) {
            super(call, name, arguments);
        }

        @Override
        void handle(byte[] request) {
            answer(request);
        }
    }

    private static final class Never extends Visit {
        Never(ServerCall<byte[], byte[]> call, String name, Arguments arguments) {
            super(call, name, arguments);
        }

        @Override
        void handle(byte[] request) {}
    }

    private static final class Fail extends Visit {
        Fail(ServerCall<byte[], byte[]> call, String name, Arguments arguments) {
            super(call, name, arguments);
        }

        @Override
        void handle(byte[] request) {
            if (end("returned")) {
                call.close(Status.UNAVAILABLE.withDescription("as asked"), new Metadata());
            }
        }
    }

    private static final class Left extends Visit {
        Left(ServerCall<byte[], byte[]> call, String name, Arguments arguments) {
            super(call, name, arguments);
        }

        @Override
        void handle(byte[] request) {
            Long left = leftMicros();
            String text = left == null ? "none" : Event.millis(left).toPlainString();
            answer(text.getBytes(StandardCharsets.US_ASCII));
        }
    }

    /** One message at once, then one each `every_ms`, or none for ever. */
    private static final class Ticks extends Visit {
        Ticks(ServerCall<byte[], byte[]> call, String name, Arguments arguments) {
            super(call, name, arguments);
        }

        @Override
        void handle(byte[] request) {
            call.sendHeaders(new Metadata());
            aside(this::tick);
        }

        private void tick() throws InterruptedException {
            byte[] message = new byte[Math.max(arguments.bytes, 1)];
            long due = System.nanoTime();
            while (gate.awaitReady(this::ready)) {
                send(message);
                if (arguments.everyMs == 0) {
                    return;
                }
                // What was held up is not made up for.
                due = Math.max(due + TimeUnit.MILLISECONDS.toNanos(arguments.everyMs), System.nanoTime());
                if (!gate.awaitTime(due)) {
                    return;
                }
            }
        }
    }

    /** Both directions at once: counts and hashes what comes until it ends, and sends its own stream. */
    private static final class Check extends Visit {
        private ScheduledFuture<?> watch;
        /** Two halves: all was sent, all was read. */
        private boolean half;

        Check(ServerCall<byte[], byte[]> call, String name, Arguments arguments) {
            super(call, name, arguments);
        }

        @Override
        void begin() {
            watch = ledger.watch(name);
            super.begin();
            call.sendHeaders(new Metadata());
            aside(() -> {
                Source source = new Source(arguments.seed + 1);
                if (gate.pour(source, ledger, arguments.receive, arguments.chunk, arguments.receiveRate, this)) {
                    finish();
                }
            });
        }

        @Override
        public void onMessage(byte[] message) {
            ledger.received(message);
            call.request(1);
        }

        @Override
        void handle(byte[] none) {
            finish();
        }

        private void finish() {
            synchronized (this) {
                if (!half) {
                    half = true;
                    return;
                }
            }
            if (end("returned")) {
                close();
            }
        }

        @Override
        void over() {
            watch.cancel(false);
        }
    }
}
