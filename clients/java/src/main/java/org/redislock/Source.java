package org.redislock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Where connections come from, one implementation for each client. They have the settings of the
 * user's client, but no timeouts and no reconnecting, which would send commands again.
 */
interface Source {
    /** An error reply of the server. Futures of this interface fail with it. */
    @SuppressWarnings("serial")
    final class ErrorReply extends Exception {
        ErrorReply(String text) {
            super(text);
        }
    }

    interface Connection {
        /** The reply: a String, a Long, null or a List of them. */
        CompletableFuture<Object> send(List<String> words);

        /** Not done while the server is silent. */
        CompletableFuture<Boolean> isOpen();

        void close();
    }

    /** The host and port of the node that has the key. */
    String address(String key);

    CompletableFuture<Connection> connect(String address);

    default boolean isCluster() {
        return false;
    }

    /** The client finds the new master, or the new node of a slot, by itself. */
    boolean followsMaster();

    /** Lets the client ask where the slots are now. */
    default void rediscover() {}

    /** The user's client. */
    boolean isClosed();

    void close();
}
