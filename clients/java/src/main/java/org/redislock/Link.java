package org.redislock;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.resource.ClientResources;
import java.nio.charset.StandardCharsets;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.redislock.LockException.Misconfigured;
import org.redislock.LockException.NoAnswer;
import org.redislock.LockException.Refused;

/**
 * Connections of our own, with the settings of the user's client, but without its timeouts and
 * without reconnecting, which would send commands again.
 */
final class Link implements AutoCloseable {
    /** ms that a healthy server needs for an answer at most. */
    static final long ANSWER = 2_000;
    /** Connections that wait in the server's queues. */
    private static final int MAX_WAITING = 100;
    private static final long FOREVER = Long.MAX_VALUE / 2;

    /** A command and the limit for its answer in ms, null for none. */
    record Request(List<String> words, Long limit) {}

    private final ClientResources resources;
    private final RedisClient own;
    private final RedisURI uri; // null for a cluster
    private final RedisClusterClient cluster; // null for one master
    private final Map<RedisURI, Deque<StatefulRedisConnection<String, String>>> idle =
            new ConcurrentHashMap<>();
    private final Map<Integer, RedisURI> moved = new ConcurrentHashMap<>(); // by slot
    private final Semaphore waiting = new Semaphore(MAX_WAITING, true);
    final boolean followsMaster;

    Link(RedisClient theirs, RedisURI uri) {
        this(theirs.getResources(), theirs.getOptions(), uri, null, !uri.getSentinels().isEmpty());
    }

    Link(RedisClusterClient theirs) {
        this(theirs.getResources(), ClientOptions.create(), null, theirs, true);
    }

    private Link(
            ClientResources resources, ClientOptions options, RedisURI uri,
            RedisClusterClient cluster, boolean followsMaster) {
        this.resources = resources;
        this.uri = uri;
        this.cluster = cluster;
        this.followsMaster = followsMaster;
        own = RedisClient.create(resources);
        own.setOptions(options.mutate()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .timeoutOptions(TimeoutOptions.builder().timeoutCommands(false).build())
                .build());
    }

    /** Carries out one command. `build` makes it just before it is sent. */
    Object ask(String key, long patience, Supplier<Request> build)
            throws Refused, NoAnswer, InterruptedException {
        for (int redirected = 0;; redirected++) {
            try {
                return askOnce(key, patience, build);
            } catch (Refused refused) { // a node that redirects has done nothing
                if (cluster == null || redirected == 5 || !refused.code.equals("MOVED")) {
                    throw refused;
                }
                String[] words = refused.getMessage().split(" "); // MOVED slot host:port
                int colon = words[2].lastIndexOf(':');
                RedisURI to = RedisURI.builder(cluster.getPartitions().getPartition(0).getUri())
                        .withHost(words[2].substring(0, colon))
                        .withPort(Integer.parseInt(words[2].substring(colon + 1)))
                        .build();
                moved.put(Integer.parseInt(words[1]), to);
            }
        }
    }

    Object ask(String key, long patience, List<String> words, long limit)
            throws Refused, NoAnswer, InterruptedException {
        return ask(key, patience, () -> new Request(words, limit));
    }

    /** The same on one of the connections that may wait; `deadline`: for getting one. */
    Object askWaiting(String key, Long deadline, Supplier<Request> build)
            throws Refused, NoAnswer, InterruptedException {
        long limit = deadline == null ? FOREVER : deadline - BootClock.now();
        if (!waiting.tryAcquire(limit, TimeUnit.MILLISECONDS)) {
            throw new NoAnswer(MAX_WAITING + " requests of this client wait already", false);
        }
        try {
            return ask(key, ANSWER, build);
        } finally {
            waiting.release();
        }
    }

    private Object askOnce(String key, long patience, Supplier<Request> build)
            throws Refused, NoAnswer, InterruptedException {
        if (resources.eventExecutorGroup().isShuttingDown()) {
            throw new Misconfigured("the client is closed: create another one for locks");
        }
        RedisURI at = where(key);
        var connection = connected(at, patience);
        Request request = build.get();
        var reply = new Reply();
        boolean keep = false;
        try {
            var args = new CommandArgs<>(StringCodec.UTF8);
            request.words().subList(1, request.words().size()).forEach(args::add);
            var word = new Word(request.words().get(0));
            var command = new AsyncCommand<>(new Command<>(word, reply, args));
            connection.dispatch(command);
            command.get(request.limit() == null ? FOREVER : request.limit(), TimeUnit.MILLISECONDS);
            keep = true;
            return reply.value();
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof RedisCommandExecutionException refused) {
                keep = !(followsMaster && refused.getMessage().startsWith("READONLY"));
                throw new Refused(refused.getMessage());
            }
            moved.clear();
            throw new NoAnswer(String.valueOf(failed.getCause().getMessage()), true);
        } catch (TimeoutException late) {
            throw new NoAnswer("the server does not answer", true);
        } finally {
            if (keep) {
                idleAt(at).push(connection);
            } else {
                connection.closeAsync();
            }
        }
    }

    private RedisURI where(String key) {
        if (cluster == null) {
            return uri;
        }
        int slot = SlotHash.getSlot(key);
        RedisURI to = moved.get(slot);
        if (to != null) {
            return to;
        }
        var node = cluster.getPartitions().getPartitionBySlot(slot);
        return (node != null ? node : cluster.getPartitions().getPartition(0)).getUri();
    }

    private StatefulRedisConnection<String, String> connected(RedisURI at, long patience)
            throws Refused, NoAnswer, InterruptedException {
        for (var next = idleAt(at).poll(); next != null; next = idleAt(at).poll()) {
            if (next.isOpen()) {
                return next;
            }
        }
        CompletableFuture<StatefulRedisConnection<String, String>> connecting =
                own.connectAsync(StringCodec.UTF8, at).toCompletableFuture();
        try {
            return connecting.get(Math.max(1, patience), TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            for (Throwable cause = failed; cause != null; cause = cause.getCause()) {
                if (cause instanceof RedisCommandExecutionException refused) {
                    throw new Refused(refused.getMessage()); // of the login
                }
            }
            moved.clear();
            throw new NoAnswer(String.valueOf(failed.getCause().getMessage()), false);
        } catch (TimeoutException | InterruptedException late) {
            connecting.thenAccept(StatefulRedisConnection::closeAsync);
            if (late instanceof InterruptedException interrupted) {
                throw interrupted;
            }
            throw new NoAnswer("cannot connect", false);
        }
    }

    private Deque<StatefulRedisConnection<String, String>> idleAt(RedisURI at) {
        return idle.computeIfAbsent(at, unused -> new ConcurrentLinkedDeque<>());
    }

    /** Lets the client ask the cluster where its slots are now. */
    void rediscover() {
        if (cluster != null) {
            moved.clear();
            cluster.refreshPartitionsAsync();
        }
    }

    @Override
    public void close() {
        own.shutdownAsync();
    }

    private record Word(String name) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return name.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return name;
        }
    }

    /** Any reply: a string, a number, null or a list of them. */
    private static final class Reply extends NestedMultiOutput<String, String> {
        private boolean isList;

        Reply() {
            super(StringCodec.UTF8);
        }

        @Override
        public void multi(int count) {
            isList |= count >= 0;
            super.multi(Math.max(0, count));
        }

        Object value() {
            List<Object> all = get();
            return isList ? all : all.isEmpty() ? null : all.get(0);
        }
    }
}
