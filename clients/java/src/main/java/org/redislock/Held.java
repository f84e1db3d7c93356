package org.redislock;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.redislock.LockException.Lost;
import org.redislock.LockException.NoAnswer;
import org.redislock.LockException.Refused;

/** A lock that is held. Closing releases it. */
public final class Held implements AutoCloseable {
    private final Hold hold;
    private final AtomicBoolean released = new AtomicBoolean();

    Held(Hold hold) {
        this.hold = hold;
    }

    /** Grows from holder to holder. Show it to the resource that the lock protects. */
    public long fence() {
        return hold.fence;
    }

    /** True from a little before the lock may pass to somebody else. */
    public boolean isLost() {
        return released.get() || hold.isLost();
    }

    /** Completed at that moment, with what is left of the validity; and by the release. */
    public CompletionStage<Duration> lost() {
        return hold.end.thenApply(Duration::ofMillis);
    }

    /** How long nobody else is granted the lock. */
    public Duration validFor() {
        return released.get() ? Duration.ZERO : Duration.ofMillis(hold.validFor());
    }

    /** Throws Lost if the lock is lost. Call it before steps that need the lock. */
    public void check() {
        if (isLost()) {
            throw new Lost("the lock is not held any longer");
        }
    }

    /**
     * Runs a command on the server if and only if the lock is held, in one step. It is never sent
     * twice. Of a lock with several names, the first one is checked.
     *
     * @return a String, a Long, null, or a List of them
     */
    public Object guard(String... command) throws InterruptedException {
        check();
        List<String> words = new ArrayList<>(List.of("LOCK.GUARD", hold.keys.get(0), hold.token));
        words.addAll(List.of(command));
        try {
            return hold.link.ask(hold.keys.get(0), Link.ANSWER, words, Link.ANSWER);
        } catch (Refused | NoAnswer error) {
            LockException explained = LockException.explain(error, hold.link.followsMaster);
            if (explained instanceof Lost) {
                hold.end.complete(0L);
            }
            throw explained;
        }
    }

    /**
     * Releases the lock.
     *
     * @return false: it was lost before. What cannot be delivered goes on in the background
     */
    public boolean release() {
        boolean wasHeld = !isLost();
        if (!released.compareAndSet(false, true)) {
            return false;
        }
        if (!hold.leave()) {
            return wasHeld;
        }
        hold.end.complete(0L);
        long until = Math.max(BootClock.now(), hold.validUntil()) + hold.ttl() / 50;
        var delivered = CompletableFuture.supplyAsync(
                () -> Hold.releaseAll(hold.link, hold.keys, hold.token, until, true), Hold.WORKERS);
        try {
            return wasHeld && delivered.get(Link.ANSWER, TimeUnit.MILLISECONDS) != Boolean.FALSE;
        } catch (TimeoutException | ExecutionException undelivered) {
            return wasHeld;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return wasHeld;
        }
    }

    /** Releases; throws Lost if the lock was lost before that. */
    @Override
    public void close() {
        if (!released.get() && !release()) {
            throw new Lost("the lock was lost before it was released");
        }
    }
}
