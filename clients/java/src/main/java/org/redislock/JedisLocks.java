package org.redislock;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.SafeEncoder;

/** Locks of the redislock module for Jedis, on one master. */
public final class JedisLocks {
    /** ns after its use in which a connection is taken to be open. */
    private static final long FRESH = 100_000_000;

    private JedisLocks() {}

    /** With the settings that the program gives its Jedis client. */
    public static RedisLocks of(HostAndPort master, JedisClientConfig config) {
        return new RedisLocks(new JedisSource(master, config));
    }

    /** A connection of Jedis blocks, so each request runs in a thread of the library. */
    private record JedisSource(HostAndPort master, JedisClientConfig config) implements Source {
        @Override
        public String address(String key) {
            return master.toString();
        }

        @Override
        public CompletableFuture<Connection> connect(String address) {
            var patient = DefaultJedisClientConfig.builder().from(config)
                    .connectionTimeoutMillis((int) Link.ANSWER)
                    .socketTimeoutMillis((int) Link.ANSWER) // of the login
                    .blockingSocketTimeoutMillis(0)
                    .build();
            return inThread(() -> new One(new redis.clients.jedis.Connection(master, patient)));
        }

        @Override
        public boolean followsMaster() {
            return false;
        }

        @Override
        public boolean isClosed() {
            return false;
        }

        @Override
        public void close() {}
    }

    private static <T> CompletableFuture<T> inThread(java.util.function.Supplier<T> work) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return work.get();
            } catch (JedisDataException refused) {
                throw new CompletionException(new Source.ErrorReply(refused.getMessage()));
            }
        }, Held.THREADS);
    }

    private static final class One implements Source.Connection {
        private final redis.clients.jedis.Connection connection;
        private volatile long usedAt = System.nanoTime();

        One(redis.clients.jedis.Connection connection) {
            this.connection = connection;
        }

        @Override
        public CompletableFuture<Object> send(List<String> words) {
            return inThread(() -> {
                connection.setTimeoutInfinite();
                byte[] name = words.get(0).getBytes(StandardCharsets.US_ASCII);
                connection.sendCommand(
                        () -> name, words.subList(1, words.size()).toArray(String[]::new));
                Object reply = SafeEncoder.encodeObject(connection.getOne());
                usedAt = System.nanoTime();
                return reply;
            });
        }

        /** Jedis does not see that the server closed a connection: it is asked after a pause. */
        @Override
        public CompletableFuture<Boolean> isOpen() {
            if (System.nanoTime() - usedAt < FRESH) {
                return CompletableFuture.completedFuture(
                        connection.isConnected() && !connection.isBroken());
            }
            return inThread(() -> {
                try {
                    connection.setTimeoutInfinite(); // who asks has a limit
                    return connection.ping();
                } catch (JedisDataException refused) {
                    return true;
                } catch (JedisException closed) {
                    return false;
                }
            });
        }

        @Override
        public void close() {
            try {
                connection.forceDisconnect(); // also ends a read in another thread
            } catch (IOException closed) {
                // it is what we want
            }
        }
    }
}
