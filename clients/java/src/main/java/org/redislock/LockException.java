package org.redislock;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The base of everything that this library throws. */
@SuppressWarnings("serial")
public class LockException extends RuntimeException {
    LockException(String message) {
        super(message);
    }

    /** Another client holds the lock, and the wait is over. */
    public static final class Busy extends LockException {
        Busy(String message) {
            super(message);
        }
    }

    /** The lock was held and is no longer held. Stop what needs it. */
    public static final class Lost extends LockException {
        Lost(String message) {
            super(message);
        }
    }

    /** No server, no answer, or it cannot serve locks now. Trying again later may help. */
    public static class Unavailable extends LockException {
        Unavailable(String message) {
            super(message);
        }
    }

    /** The server may have forgotten grants and pauses granting. */
    public static final class Quarantined extends Unavailable {
        private final Duration retryAfter;

        Quarantined(String message, Duration retryAfter) {
            super(message);
            this.retryAfter = retryAfter;
        }

        public Duration retryAfter() {
            return retryAfter;
        }
    }

    /** Trying again does not help: the message says what to change on the server or the client. */
    public static final class Misconfigured extends LockException {
        Misconfigured(String message) {
            super(message);
        }
    }

    /** The arguments can never be right. */
    public static final class InvalidRequest extends LockException {
        InvalidRequest(String message) {
            super(message);
        }
    }

    private static final Pattern RETRY_IN = Pattern.compile("retry in (\\d+) ms");
    private static final Set<String> TRANSIENT = Set.of(
            "UNBLOCKED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN",
            "NOREPLICAS", "MISCONF", "OOM", "BUSY");
    private static final Map<String, String> ADVICE = Map.of(
            "READONLY", "this server is a replica: connect to the master",
            "MOVED", "this server is part of a cluster: use the client for a cluster",
            "NOPERM", "allow the ACL user +lock.acquire, +lock.macquire, +lock.extend, "
                    + "+lock.mextend, +lock.release, +lock.mrelease, +lock.guard and the keys of "
                    + "its locks",
            "NOAUTH", "give the client a user name and password",
            "WRONGPASS", "check the client's user name and password",
            "CROSSSLOT", "several keys of one lock need a common {hash tag} in a cluster",
            "WRONGTYPE", "the key holds other data: use another name for the lock");

    /** The exception for an error reply. `followsMaster`: the client finds the new master. */
    static LockException refused(String text, boolean followsMaster) {
        String code = text.split(" ", 2)[0];
        if (text.toLowerCase().contains("unknown command")) {
            return new Misconfigured(
                    "the server has no redislock module: start it with loadmodule redislock.so");
        }
        if (code.equals("NOTHELD")) {
            return new Lost("the lock is no longer held, the command was not run");
        }
        if (code.equals("QUARANTINE")) {
            Matcher found = RETRY_IN.matcher(text);
            long retryIn = found.find() ? Long.parseLong(found.group(1)) : 100;
            return new Quarantined(text, Duration.ofMillis(retryIn));
        }
        boolean isElsewhere = code.equals("READONLY") || code.equals("MOVED");
        if (TRANSIENT.contains(code) || (isElsewhere && followsMaster)) {
            return new Unavailable(text);
        }
        String advice = ADVICE.get(code);
        return new Misconfigured(advice == null ? text : text + ": " + advice);
    }
}
