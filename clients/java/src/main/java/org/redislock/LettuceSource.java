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
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** Connections of Lettuce. */
final class LettuceSource implements Source {
    private static final String ONE_MASTER = "";
    /** For the login and the question to a Sentinel. One that is late is used later. */
    private static final Duration LOGIN = Duration.ofSeconds(10);

    private final ClientResources resources;
    private final RedisClient own;
    private final RedisURI uri; // null for a cluster
    private final RedisClusterClient cluster; // null for one master

    LettuceSource(
            ClientResources resources, ClientOptions options, RedisURI uri,
            RedisClusterClient cluster) {
        this.resources = resources;
        this.uri = uri;
        this.cluster = cluster;
        own = RedisClient.create(resources);
        own.setOptions(options.mutate()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .timeoutOptions(TimeoutOptions.builder().timeoutCommands(false).build())
                .build());
    }

    @Override
    public String address(String key) {
        if (cluster == null) {
            return ONE_MASTER;
        }
        var partitions = cluster.getPartitions();
        var node = partitions.getPartitionBySlot(SlotHash.getSlot(key));
        RedisURI at = (node != null ? node : partitions.getPartition(0)).getUri();
        return at.getHost() + ":" + at.getPort();
    }

    @Override
    public CompletableFuture<Connection> connect(String address) {
        RedisURI theirs = cluster == null ? uri : cluster.getPartitions().getPartition(0).getUri();
        var at = RedisURI.builder(theirs).withTimeout(LOGIN);
        theirs.getSentinels().forEach(at::withSentinel); // the builder does not copy them
        if (theirs.getSentinelMasterId() != null) {
            at.withSentinelMasterId(theirs.getSentinelMasterId());
        }
        if (cluster != null) {
            int colon = address.lastIndexOf(':');
            at.withHost(address.substring(0, colon))
                    .withPort(Integer.parseInt(address.substring(colon + 1)));
        }
        return own.connectAsync(StringCodec.UTF8, at.build()).toCompletableFuture()
                .handle(LettuceSource::orErrorReply).thenApply(One::new);
    }

    /** Lettuce's exception for an error reply, which may be the cause of another one, as ours. */
    private static <T> T orErrorReply(T value, Throwable failed) {
        for (Throwable cause = failed; cause != null; cause = cause.getCause()) {
            if (cause instanceof RedisCommandExecutionException refused) {
                throw new CompletionException(new ErrorReply(refused.getMessage()));
            }
        }
        if (failed != null) {
            throw new CompletionException(failed);
        }
        return value;
    }

    @Override
    public boolean isCluster() {
        return cluster != null;
    }

    @Override
    public boolean followsMaster() {
        return cluster != null || !uri.getSentinels().isEmpty();
    }

    @Override
    public void rediscover() {
        if (cluster != null) {
            cluster.refreshPartitionsAsync();
        }
    }

    @Override
    public boolean isClosed() {
        return resources.eventExecutorGroup().isShuttingDown();
    }

    @Override
    public void close() {
        own.shutdownAsync();
    }

    private record One(StatefulRedisConnection<String, String> connection) implements Connection {
        @Override
        public CompletableFuture<Object> send(List<String> words) {
            var args = new CommandArgs<>(StringCodec.UTF8);
            words.subList(1, words.size()).forEach(args::add);
            var reply = new Reply();
            var command = new AsyncCommand<>(new Command<>(new Word(words.get(0)), reply, args));
            connection.dispatch(command);
            return command.handle(LettuceSource::orErrorReply).thenApply(any -> reply.value());
        }

        @Override
        public CompletableFuture<Boolean> isOpen() {
            return CompletableFuture.completedFuture(connection.isOpen());
        }

        @Override
        public void close() {
            connection.closeAsync();
        }
    }

    private record Word(String text) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return text.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return text;
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
