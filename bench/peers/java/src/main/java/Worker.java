import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.IntStream;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redislock.Held;
import org.redislock.JedisLocks;
import org.redislock.LockOptions;
import org.redislock.RedisLocks;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** Workers that compete for one lock: Worker PEER PORTS WORKERS SECONDS (protocol: ../run.py). */
public final class Worker {
    /** Requests of one client that redislock lets wait at the server. */
    private static final int MOST_WAITING = 100;

    /** Runs the work of a worker under the lock. */
    private interface Locking {
        void run(int worker, Runnable work) throws Exception;
    }

    private static Locking locking(String peer, int[] ports, int workers) {
        return switch (peer) {
            case "Redisson RLock" -> by(redisson(ports[0], workers).getLock("bench"));
            case "Redisson RFairLock" -> by(redisson(ports[0], workers).getFairLock("bench"));
            case "RedissonRedLock" -> by(majority(ports, workers));
            default -> queued(peer, ports[0], workers);
        };
    }

    /** As many connections as workers: a fair lock subscribes for each of them. */
    private static RedissonClient redisson(int port, int workers) {
        var config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port)
                .setConnectionPoolSize(Math.max(64, workers))
                .setSubscriptionConnectionPoolSize(Math.max(50, workers));
        return Redisson.create(config);
    }

    @SuppressWarnings("deprecation") // the only one of Redisson that agrees by majority
    private static RLock majority(int[] ports, int workers) {
        return new RedissonRedLock(Arrays.stream(ports)
                .mapToObj(port -> redisson(port, workers).getLock("bench"))
                .toArray(RLock[]::new));
    }

    private static Locking by(RLock lock) {
        return (worker, work) -> {
            lock.lock();
            try {
                work.run();
            } finally {
                lock.unlock();
            }
        };
    }

    /** The workers share as many clients as let all of them wait. */
    private static Locking queued(String peer, int port, int workers) {
        int clients = (workers + MOST_WAITING - 1) / MOST_WAITING;
        RedisLocks[] locks = IntStream.range(0, clients)
                .mapToObj(client -> locks(peer, port)).toArray(RedisLocks[]::new);
        var options = LockOptions.ttl(Duration.ofSeconds(30));
        return (worker, work) -> {
            try (Held held = locks[worker % clients].acquire("bench", options)) {
                work.run();
            }
        };
    }

    private static RedisLocks locks(String peer, int port) {
        if (peer.equals("redislock on Jedis")) {
            var config = DefaultJedisClientConfig.builder().build();
            return JedisLocks.of(new HostAndPort("127.0.0.1", port), config);
        }
        var uri = RedisURI.create("127.0.0.1", port);
        return RedisLocks.of(RedisClient.create(uri), uri);
    }

    private final int[] grants;
    private final List<Long> waits = new ArrayList<>();
    private volatile long end; // set before the gate opens
    private int handovers;
    private int last = -1;

    private Worker(int workers) {
        grants = new int[workers];
    }

    private synchronized void granted(int worker, long asked) {
        long now = System.nanoTime();
        waits.add((now - asked) / 1000);
        if (now < end) {
            grants[worker]++;
            handovers += last == worker ? 0 : 1;
            last = worker;
        }
    }

    private void work(Locking locking, int worker, CountDownLatch gate) {
        try {
            gate.await();
            for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
                long since = asked;
                locking.run(worker, () -> granted(worker, since));
            }
        } catch (Exception failed) {
            failed.printStackTrace();
            System.err.println(failed);
            System.exit(1);
        }
    }

    private static Worker measure(Locking locking, int workers, int seconds) throws Exception {
        var tally = new Worker(workers);
        var gate = new CountDownLatch(1); // all begin when the last one is there
        List<Thread> team = new ArrayList<>();
        for (int i = 0; i < workers; i++) {
            int worker = i;
            team.add(new Thread(() -> tally.work(locking, worker, gate)));
        }
        team.forEach(Thread::start);
        tally.end = System.nanoTime() + seconds * 1_000_000_000L;
        gate.countDown();
        for (Thread one : team) {
            one.join();
        }
        return tally;
    }

    public static void main(String[] words) throws Exception {
        int workers = Integer.parseInt(words[2]);
        int[] ports = Arrays.stream(words[1].split(",")).mapToInt(Integer::parseInt).toArray();
        Locking locking = locking(words[0], ports, workers);
        measure(locking, workers, 3); // the compiler of the JVM needs longer than the others
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        Worker tally = measure(locking, workers, Integer.parseInt(words[3]));
        System.out.printf(
                "{\"grants\": %s, \"waits\": %s, \"handovers\": %d}%n",
                Arrays.toString(tally.grants), tally.waits, tally.handovers);
        System.exit(0);
    }
}
