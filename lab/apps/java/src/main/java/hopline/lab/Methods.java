package hopline.lab;

import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;

/** The service `lab.Lab`, whose messages are bytes as they are. */
final class Methods {
    static final String SERVICE = "lab.Lab";
    static final Metadata.Key<String> CALL = Metadata.Key.of("lab-call", Metadata.ASCII_STRING_MARSHALLER);
    static final Metadata.Key<String> ARGS = Metadata.Key.of("lab-args", Metadata.ASCII_STRING_MARSHALLER);

    static final MethodDescriptor<byte[], byte[]> ECHO = method("Echo", MethodType.UNARY);
    static final MethodDescriptor<byte[], byte[]> NEVER = method("Never", MethodType.UNARY);
    static final MethodDescriptor<byte[], byte[]> DEADLINE = method("Deadline", MethodType.UNARY);
    static final MethodDescriptor<byte[], byte[]> FAIL = method("Fail", MethodType.UNARY);
    static final MethodDescriptor<byte[], byte[]> TICKS = method("Ticks", MethodType.SERVER_STREAMING);
    static final MethodDescriptor<byte[], byte[]> CHECK = method("Check", MethodType.BIDI_STREAMING);

    private Methods() {}

    private static MethodDescriptor<byte[], byte[]> method(String name, MethodType type) {
        return MethodDescriptor.newBuilder(Raw.INSTANCE, Raw.INSTANCE)
                .setFullMethodName(MethodDescriptor.generateFullMethodName(SERVICE, name))
                .setType(type)
                .build();
    }

    private enum Raw implements MethodDescriptor.Marshaller<byte[]> {
        INSTANCE;

        @Override
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
