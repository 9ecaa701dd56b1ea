import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;

/** Drives a gateway with grpc-java: {@code java Client HOST PORT}. Prints a line for each case that passed. */
public final class Client {
    /** Seconds. A case that takes longer hangs. */
    private static final int LIMIT = 60;
    /** Milliseconds between the calls during a change, so that clients do not take the processors from what changes. */
    private static final int PAUSE = 2;
    private static final String NAME = "grpc-java";
    private static final Metadata.Key<String> ECHO = Metadata.Key.of("x-echo", Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<byte[]> ECHO_BINARY = Metadata.Key.of("x-echo-bin", Metadata.BINARY_BYTE_MARSHALLER);
    private static final Metadata.Key<byte[]> DETAILS = Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);
    private static final Metadata.Key<String> VERSION = Metadata.Key.of("x-version", Metadata.ASCII_STRING_MARSHALLER);

    private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] message) {
            return new ByteArrayInputStream(message);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw Status.INTERNAL.withCause(error).asRuntimeException();
            }
        }
    }

    private interface Test {
        void run() throws Exception;
    }

    private final Channel channel;

    private Client(Channel channel) {
        this.channel = channel;
    }

    public static void main(String[] arguments) throws Exception {
        NettyChannelBuilder builder = NettyChannelBuilder.forAddress(arguments[0], Integer.parseInt(arguments[1]));
        ManagedChannel channel = builder.usePlaintext().maxInboundMetadataSize(1 << 16).maxInboundMessageSize(16 << 20).build();
        Client client = new Client(channel);
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("unary", client::unary);
        tests.put("large", client::large);
        tests.put("metadata", client::metadata);
        tests.put("server streaming", client::serverStreaming);
        tests.put("client streaming", client::clientStreaming);
        tests.put("bidirectional", client::bidirectional);
        tests.put("refused with details", () -> client.fails("Refuse"));
        tests.put("failed late with details", () -> client.fails("Late"));
        tests.put("deadline before the head", () -> client.deadline("Silent"));
        tests.put("deadline after the head", () -> client.deadline("Quiet"));
        tests.put("cancel", client::cancel);
        tests.put("unknown method", client::unknownMethod);
        tests.put("a hundred at once", client::manyAtOnce);
        tests.put("change", client::change);
        for (Map.Entry<String, Test> test : tests.entrySet()) {
            try {
                test.getValue().run();
            } catch (Throwable error) {
                System.err.print(test.getKey() + ": ");
                error.printStackTrace();
                System.exit(1);
            }
            System.out.println("passed " + test.getKey());
        }
        channel.shutdownNow();
    }

    private static MethodDescriptor<byte[], byte[]> method(MethodType type, String name) {
        String path = name.contains("/") ? name : "test.Calls/" + name;
        return MethodDescriptor.<byte[], byte[]>newBuilder(new Bytes(), new Bytes()).setType(type).setFullMethodName(path).build();
    }

    private static CallOptions within(int milliseconds) {
        return CallOptions.DEFAULT.withDeadlineAfter(milliseconds, TimeUnit.MILLISECONDS);
    }

    private static CallOptions patient() {
        return within(LIMIT * 1000);
    }

    private ClientCall<byte[], byte[]> call(MethodType type, String name) {
        return channel.newCall(method(type, name), patient());
    }

    private byte[] call(String name, byte[] message) {
        return ClientCalls.blockingUnaryCall(channel, method(MethodType.UNARY, name), patient(), message);
    }

    private static void check(boolean holds, Object got) {
        if (!holds) {
            throw new AssertionError(got);
        }
    }

    private static StatusRuntimeException expect(Status.Code code, Test test) throws Exception {
        try {
            test.run();
        } catch (StatusRuntimeException error) {
            if (error.getStatus().getCode() != code) {
                throw error;
            }
            return error;
        }
        throw new AssertionError("ended without an error");
    }

    private static byte[] filled(int length, char with) {
        byte[] bytes = new byte[length];
        Arrays.fill(bytes, (byte) with);
        return bytes;
    }

    private void unary() {
        for (int count = 0; count < 100; count++) {
            check(new String(call("Unary", "hello".getBytes())).equals("hello"), count);
        }
    }

    private void large() {
        byte[] message = filled(4 << 20, 'l');
        check(Arrays.equals(call("Unary", message), message), "another message");
    }

    private void metadata() {
        byte[] binary = new byte[9000];
        for (int index = 1; index < binary.length; index += 2) {
            binary[index] = -1;
        }
        String text = "v".repeat(9000);
        Metadata sent = new Metadata();
        sent.put(ECHO, text);
        sent.put(ECHO, "second");
        sent.put(ECHO_BINARY, binary);
        AtomicReference<Metadata> head = new AtomicReference<>();
        AtomicReference<Metadata> trailers = new AtomicReference<>();
        Channel capturing = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(sent),
            MetadataUtils.newCaptureMetadataInterceptor(head, trailers));
        ClientCalls.blockingUnaryCall(capturing, method(MethodType.UNARY, "Unary"), patient(), new byte[0]);
        for (Metadata got : List.of(head.get(), trailers.get())) {
            List<String> texts = new ArrayList<>();
            got.getAll(ECHO).forEach(texts::add);
            check(texts.equals(List.of(text, "second")), texts);
            check(Arrays.equals(got.get(ECHO_BINARY), binary), "other bytes");
        }
    }

    private void serverStreaming() {
        MethodDescriptor<byte[], byte[]> method = method(MethodType.SERVER_STREAMING, "Down");
        Iterator<byte[]> messages = ClientCalls.blockingServerStreamingCall(channel, method, patient(), "1000 1000".getBytes());
        int count = 0;
        for (; messages.hasNext(); count++) {
            check(messages.next().length == 1000, count);
        }
        check(count == 1000, count);
    }

    /** The messages of a response; after them, its end: an error, or this. */
    private static final class Messages implements StreamObserver<byte[]> {
        private final BlockingQueue<Object> queue = new LinkedBlockingQueue<>();

        @Override
        public void onNext(byte[] message) {
            queue.add(message);
        }

        @Override
        public void onError(Throwable error) {
            queue.add(error);
        }

        @Override
        public void onCompleted() {
            queue.add(this);
        }

        private Object next() throws InterruptedException {
            Object next = queue.poll(LIMIT, TimeUnit.SECONDS);
            check(next != null && !(next instanceof Throwable), next);
            return next;
        }
    }

    private void clientStreaming() throws Exception {
        Messages messages = new Messages();
        StreamObserver<byte[]> requests = ClientCalls.asyncClientStreamingCall(call(MethodType.CLIENT_STREAMING, "Up"), messages);
        for (int count = 0; count < 1000; count++) {
            requests.onNext(filled(1000, 'u'));
        }
        requests.onCompleted();
        String response = new String((byte[]) messages.next());
        check(response.equals("1000 1000000"), response);
    }

    private void bidirectional() throws Exception {
        Messages messages = new Messages();
        StreamObserver<byte[]> requests = ClientCalls.asyncBidiStreamingCall(call(MethodType.BIDI_STREAMING, "Both"), messages);
        for (int number = 0; number < 50; number++) {
            byte[] message = ("message " + number).getBytes();
            requests.onNext(message);
            check(Arrays.equals((byte[]) messages.next(), message), number);
        }
        requests.onCompleted();
        check(messages.next() == messages, "a message too many");
    }

    private void fails(String name) throws Exception {
        StatusRuntimeException error = expect(Status.Code.FAILED_PRECONDITION, () -> call(name, new byte[0]));
        check("not now, caf\u00e9".equals(error.getStatus().getDescription()), error);
        check(error.getTrailers().get(DETAILS).length > 9000, error.getTrailers());
    }

    private void deadline(String name) throws Exception {
        MethodDescriptor<byte[], byte[]> method = method(MethodType.SERVER_STREAMING, name);
        expect(Status.Code.DEADLINE_EXCEEDED, () -> ClientCalls
            .blockingServerStreamingCall(channel, method, within(300), ("deadline " + NAME).getBytes()).forEachRemaining(message -> { }));
    }

    private void cancel() throws Exception {
        ClientCall<byte[], byte[]> call = call(MethodType.SERVER_STREAMING, "Quiet");
        Messages messages = new Messages();
        byte[] message = ("cancel " + NAME).getBytes();
        ClientCalls.asyncServerStreamingCall(call, message, messages);
        messages.next();
        call.cancel("enough", null);
        Object end = messages.queue.poll(LIMIT, TimeUnit.SECONDS);
        check(end instanceof Throwable && Status.fromThrowable((Throwable) end).getCode() == Status.Code.CANCELLED, end);
        long hangs = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT);
        while (!new String(call("Ended", message)).equals("yes")) {
            check(System.nanoTime() < hangs, "the function does not learn of it");
            Thread.sleep(5);
        }
    }

    private void unknownMethod() throws Exception {
        for (String path : List.of("test.Calls/Unknown", "test.Unknown/Unary")) {
            expect(Status.Code.UNIMPLEMENTED, () -> call(path, new byte[0]));
        }
    }

    private void manyAtOnce() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(20);
        try {
            Callable<Void> one = () -> {
                bidirectional();
                return null;
            };
            List<Future<Void>> all = new ArrayList<>();
            for (int count = 0; count < 100; count++) {
                all.add(threads.submit(one));
            }
            for (Future<Void> done : all) {
                done.get();
            }
        } finally {
            threads.shutdown();
        }
    }

    /** Calls again and again while the function's instances are replaced, until a line of input comes. */
    private void change() throws InterruptedException {
        AtomicBoolean stop = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                System.in.read();
            } catch (IOException ended) {
                // As if a line had come.
            }
            stop.set(true);
        });
        input.setDaemon(true);
        input.start();
        Set<String> versions = new TreeSet<>();
        versions.add(version());
        System.out.println("steady");
        while (!stop.get()) {
            versions.add(version());
            Thread.sleep(PAUSE);
        }
        check(versions.size() == 2, versions);
    }

    private String version() {
        AtomicReference<Metadata> head = new AtomicReference<>();
        Channel capturing = ClientInterceptors.intercept(channel, MetadataUtils.newCaptureMetadataInterceptor(head, new AtomicReference<>()));
        ClientCalls.blockingUnaryCall(capturing, method(MethodType.UNARY, "Unary"), patient(), "hello".getBytes());
        return head.get().get(VERSION);
    }
}
