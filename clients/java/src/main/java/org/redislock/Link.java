package org.redislock;

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
import org.redislock.LockException.Unavailable;
import org.redislock.Source.Connection;
import org.redislock.Source.ErrorReply;

/** Our own connections, those that wait bounded. Times are in ms. */
final class Link {
    /** In which a healthy server answers. */
    static final long ANSWER = 2_000;
    static final long FOREVER = Long.MAX_VALUE / 2;
    /** Connections that wait in the server's queues. */
    private static final int MAX_WAITING = 100;

    final Source source;
    private final Map<String, Deque<Connection>> idle = new ConcurrentHashMap<>(); // by address
    private final Semaphore waiting = new Semaphore(MAX_WAITING, true);

    Link(Source source) {
        this.source = source;
    }

    /** Sends one command, once, and returns the reply. `build` makes it just before the sending. */
    Object ask(String key, Supplier<List<String>> build, long limit) throws InterruptedException {
        String address = source.address(key);
        for (int redirected = 0;; redirected++) {
            try {
                return askAt(address, build, limit);
            } catch (ErrorReply reply) {
                String[] words = reply.getMessage().split(" "); // MOVED slot host:port
                if (!words[0].equals("MOVED") || redirected == 5) {
                    throw LockException.refused(reply.getMessage(), source.followsMaster());
                }
                address = words[2]; // a node that redirects has done nothing
                source.rediscover();
            }
        }
    }

    /** The same on one of the connections that may wait; `turn`: how long to wait for one. */
    Object askWaiting(String key, Supplier<List<String>> build, long limit, long turn)
            throws InterruptedException {
        if (!waiting.tryAcquire(turn, TimeUnit.MILLISECONDS)) {
            throw new Unavailable(MAX_WAITING + " requests of this client wait already", false);
        }
        try {
            return ask(key, build, limit);
        } finally {
            waiting.release();
        }
    }

    private Object askAt(String address, Supplier<List<String>> build, long limit)
            throws ErrorReply, InterruptedException {
        if (source.isClosed()) {
            throw new Misconfigured("the client is closed: create another one for locks");
        }
        var unused = idle.computeIfAbsent(address, any -> new ConcurrentLinkedDeque<>());
        Connection connection = unused.poll();
        while (connection != null && !connection.isOpen()) {
            connection = unused.poll();
        }
        if (connection == null) {
            var connecting = source.connect(address);
            try {
                connection = answer(connecting, ANSWER, false);
            } finally {
                if (connection == null) {
                    connecting.thenAccept(Connection::close);
                }
            }
        }
        boolean keep = false;
        try {
            Object reply = answer(connection.send(build.get()), limit, true);
            keep = true;
            return reply;
        } catch (ErrorReply reply) {
            keep = !(source.followsMaster() && reply.getMessage().startsWith("READONLY"));
            throw reply;
        } finally {
            if (keep) {
                unused.push(connection);
            } else {
                connection.close();
            }
        }
    }

    void close() {
        for (var unused : idle.values()) {
            for (var next = unused.poll(); next != null; next = unused.poll()) {
                next.close();
            }
        }
        source.close();
    }

    private static <T> T answer(CompletableFuture<T> future, long limit, boolean sent)
            throws ErrorReply, InterruptedException {
        try {
            return future.get(Math.max(1, limit), TimeUnit.MILLISECONDS);
        } catch (TimeoutException late) {
            throw new Unavailable("no answer from the server: it takes too long", sent);
        } catch (ExecutionException failed) {
            for (Throwable cause = failed; cause != null; cause = cause.getCause()) {
                if (cause instanceof ErrorReply reply) {
                    throw reply;
                }
            }
            String why = String.valueOf(failed.getCause().getMessage());
            throw new Unavailable("no answer from the server: " + why, sent);
        }
    }
}
