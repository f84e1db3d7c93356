import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.config.Config;
import org.redislock.Held;
import org.redislock.JedisLocks;
import org.redislock.LockOptions;
import org.redislock.RedisLocks;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** Workers that compete for one lock: Worker PEER PORT WORKERS SECONDS (protocol: ../run.py). */
public final class Worker {
    /** Runs the work under the lock. */
    private interface Locking {
        void run(Runnable work) throws Exception;
    }

    private static Locking locking(String peer, int port) {
        if (peer.equals("Redisson RLock")) {
            var config = new Config();
            config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
            RLock lock = Redisson.create(config).getLock("bench");
            return work -> {
                lock.lock();
                try {
                    work.run();
                } finally {
                    lock.unlock();
                }
            };
        }
        var uri = RedisURI.create("127.0.0.1", port);
        var config = DefaultJedisClientConfig.builder().build();
        RedisLocks locks = peer.equals("redislock on Jedis")
                ? JedisLocks.of(new HostAndPort("127.0.0.1", port), config)
                : RedisLocks.of(RedisClient.create(uri), uri);
        var options = LockOptions.ttl(Duration.ofSeconds(30));
        return work -> {
            try (Held held = locks.acquire("bench", options)) {
                work.run();
            }
        };
    }

    private final int[] grants;
    private final List<Long> waits = new ArrayList<>();
    private final long end;
    private int handovers;
    private int last = -1;

    private Worker(int workers, int seconds) {
        grants = new int[workers];
        end = System.nanoTime() + seconds * 1_000_000_000L;
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

    private void work(Locking locking, int worker) {
        try {
            for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
                long since = asked;
                locking.run(() -> granted(worker, since));
            }
        } catch (Exception failed) {
            failed.printStackTrace();
            System.exit(1);
        }
    }

    private static Worker measure(Locking locking, int workers, int seconds) throws Exception {
        var tally = new Worker(workers, seconds);
        List<Thread> team = new ArrayList<>();
        for (int i = 0; i < workers; i++) {
            int worker = i;
            team.add(new Thread(() -> tally.work(locking, worker)));
        }
        team.forEach(Thread::start);
        for (Thread one : team) {
            one.join();
        }
        return tally;
    }

    public static void main(String[] words) throws Exception {
        int workers = Integer.parseInt(words[2]);
        Locking locking = locking(words[0], Integer.parseInt(words[1]));
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
