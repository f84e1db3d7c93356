package org.redislock.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.CommandType;
import io.lettuce.core.protocol.ProtocolVersion;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.logging.LogManager;
import org.redislock.Held;
import org.redislock.JedisLocks;
import org.redislock.LockException;
import org.redislock.LockOptions;
import org.redislock.Owner;
import org.redislock.RedisLocks;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.util.SafeEncoder;

/** The library behind the driver protocol (clients/README.md): on Lettuce; jedis: on Jedis. */
public final class Driver {
    /** What the runner opened: a plain command on the user's client, its end, and the locks. */
    private record Opened(
            Function<List<String>, Object> command, Runnable close, RedisLocks locks) {}

    @SuppressWarnings("serial")
    private static final class Skip extends RuntimeException {
        Skip(String why) {
            super(why);
        }
    }

    /** An error of the work under the lock. */
    @SuppressWarnings("serial")
    private static final class Work extends Exception {}

    private static final ObjectMapper JSON = new ObjectMapper();
    private static boolean useJedis;
    private final Map<String, Opened> clients = new ConcurrentHashMap<>();
    private final Map<String, Held> helds = new ConcurrentHashMap<>();
    private final Map<String, Owner> owners = new ConcurrentHashMap<>();
    private final Map<Integer, Thread> acquiring = new ConcurrentHashMap<>();

    public static void main(String[] words) throws Exception {
        useJedis = List.of(words).contains("jedis");
        LogManager.getLogManager().reset(); // that servers go away is what the scenarios are about
        var driver = new Driver();
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode ask = JSON.readTree(line);
            var thread = new Thread(() -> driver.serve(ask));
            thread.setDaemon(true);
            if (ask.get("op").asText().equals("acquire")) {
                driver.acquiring.put(ask.get("id").asInt(), thread);
            }
            thread.start();
        }
        System.exit(0);
    }

    private void serve(JsonNode ask) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", ask.get("id").asInt());
        try {
            answer.put("ok", work(ask));
        } catch (Skip skip) {
            answer.put("skip", skip.getMessage());
        } catch (Throwable error) {
            answer.put("error", failure(error));
        }
        acquiring.remove(ask.get("id").asInt());
        synchronized (JSON) {
            try {
                System.out.println(JSON.writeValueAsString(answer));
            } catch (Exception impossible) {
                throw new IllegalStateException(impossible);
            }
        }
    }

    private static Map<String, Object> failure(Throwable error) {
        Map<String, Object> failure = new LinkedHashMap<>();
        String kind = error.getClass().getSimpleName();
        failure.put("kind", switch (kind) {
            case "Busy", "Lost", "Quarantined", "Unavailable", "Misconfigured" ->
                    kind.toLowerCase();
            case "InvalidRequest" -> "invalid";
            case "InterruptedException" -> "cancelled";
            default -> error.toString();
        });
        failure.put("message", String.valueOf(error.getMessage()));
        if (error instanceof LockException.Quarantined quarantined) {
            failure.put("retry_after", quarantined.retryAfter().toMillis());
        }
        return failure;
    }

    private Map<String, Object> work(JsonNode ask) throws Exception {
        Held held = ask.has("held") ? helds.get(ask.get("held").asText()) : null;
        switch (ask.get("op").asText()) {
            case "open" -> {
                clients.put(ask.get("client").asText(), useJedis ? openJedis(ask) : open(ask));
            }
            case "acquire" -> {
                Held got = acquire(ask);
                helds.put(ask.get("held").asText(), got);
                return Map.of("fence", got.fence());
            }
            case "run" -> {
                return Map.of("errors", shown(ask));
            }
            case "cancel" -> {
                Thread thread = acquiring.get(ask.get("acquire").asInt());
                if (thread != null) {
                    thread.interrupt();
                }
            }
            case "state" -> {
                return Map.of("valid_for", held.validFor().toMillis(), "lost", held.isLost());
            }
            case "await_lost" -> {
                return Map.of("valid_for", held.lost().toCompletableFuture().get().toMillis());
            }
            case "release" -> {
                if (ask.has("cancelled")) {
                    Thread.currentThread().interrupt();
                }
                return Map.of("held", held.release());
            }
            case "guard" -> {
                return reply(held.guard(words(ask.get("command")).toArray(String[]::new)));
            }
            case "command" -> {
                var client = clients.get(ask.get("client").asText());
                return reply(client.command().apply(words(ask.get("command"))));
            }
            case "close" -> clients.get(ask.get("client").asText()).close().run();
            default -> throw new Skip("not in this language");
        }
        return Map.of();
    }

    private List<String> shown(JsonNode ask) throws InterruptedException {
        try (Held held = acquire(ask)) {
            if (ask.get("work").asText().equals("release")) {
                held.release();
                return List.of();
            }
            while (ask.get("work").asText().equals("guard")) {
                held.guard("INCR", "n");
            }
            held.lost().toCompletableFuture().join();
            throw new Work();
        } catch (Work work) {
            var lost = List.of(work.getSuppressed()).stream()
                    .anyMatch(one -> one instanceof LockException.Lost);
            return lost ? List.of("work", "lost") : List.of("work");
        } catch (LockException.Lost lost) {
            return List.of("lost");
        }
    }

    private static Map<String, Object> reply(Object value) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("reply", value);
        return reply;
    }

    private static List<String> words(JsonNode array) {
        List<String> words = new ArrayList<>();
        array.forEach(one -> words.add(one.asText()));
        return words;
    }

    private static Opened open(JsonNode ask) {
        JsonNode first = ask.get("addresses").get(0);
        String host = first.get(0).asText();
        int port = first.get(1).asInt();
        if (ask.get("mode").asText().equals("cluster")) {
            var client = RedisClusterClient.create(RedisURI.create(host, port));
            return new Opened(null, client::shutdown, RedisLocks.of(client));
        }
        var uri = ask.get("mode").asText().equals("sentinel")
                ? RedisURI.Builder.sentinel(host, port, ask.get("master").asText())
                : RedisURI.builder().withHost(host).withPort(port);
        if (ask.has("username")) {
            uri.withAuthentication(ask.get("username").asText(), ask.get("password").asText());
        }
        if (ask.has("timeout")) {
            uri.withTimeout(Duration.ofMillis(ask.get("timeout").asLong()));
        }
        var client = RedisClient.create(uri.build());
        var patient = SocketOptions.builder().connectTimeout(Duration.ofMinutes(1)).build();
        var protocol = ask.has("unusual") ? ProtocolVersion.RESP2 : ProtocolVersion.RESP3;
        client.setOptions(
                ClientOptions.builder().socketOptions(patient).protocolVersion(protocol).build());
        Function<List<String>, Object> command = words -> {
            var args = new CommandArgs<>(StringCodec.UTF8);
            words.subList(1, words.size()).forEach(args::add);
            var type = CommandType.valueOf(words.get(0));
            try (var connection = client.connect()) {
                return connection.sync().dispatch(type, new StatusOutput<>(StringCodec.UTF8), args);
            }
        };
        return new Opened(command, client::shutdown, RedisLocks.of(client, uri.build()));
    }

    private static Opened openJedis(JsonNode ask) {
        if (!ask.get("mode").asText().equals("single")) {
            throw new Skip("JedisLocks has one master");
        }
        JsonNode first = ask.get("addresses").get(0);
        var at = new HostAndPort(first.get(0).asText(), first.get(1).asInt());
        var config = DefaultJedisClientConfig.builder();
        if (ask.has("username")) {
            config.user(ask.get("username").asText()).password(ask.get("password").asText());
        }
        if (ask.has("timeout")) {
            int timeout = ask.get("timeout").asInt();
            config.timeoutMillis(timeout).blockingSocketTimeoutMillis(timeout);
        }
        if (ask.has("unusual")) {
            config.resp3();
        }
        var jedis = new Jedis(at, config.build());
        Function<List<String>, Object> command = words -> SafeEncoder.encodeObject(
                jedis.sendCommand(() -> words.get(0).getBytes(),
                        words.subList(1, words.size()).toArray(String[]::new)));
        return new Opened(command, jedis::close, JedisLocks.of(at, config.build()));
    }

    private Held acquire(JsonNode ask) throws InterruptedException {
        if (!ask.get("ttl").isNumber() || ask.get("name").isNumber()) {
            throw new Skip("the compiler refuses this");
        }
        LockOptions options = LockOptions.ttl(Duration.ofMillis(ask.get("ttl").asLong()));
        if (!ask.get("wait").isNull()) {
            options = options.waitAtMost(Duration.ofMillis(ask.get("wait").asLong()));
        }
        if (ask.has("limit") && !ask.has("shared")) {
            throw new Skip("the compiler refuses this");
        }
        if (ask.has("shared")) {
            JsonNode limit = ask.get("limit");
            options = limit == null ? options.shared() : options.shared(limit.asInt());
        }
        if (ask.has("renew_every")) {
            options = options.renewEvery(Duration.ofMillis(ask.get("renew_every").asLong()));
        }
        if (ask.has("renew") && !ask.get("renew").asBoolean()) {
            options = options.withoutRenewal();
        }
        if (ask.has("owner")) {
            String owner = ask.get("owner").asText();
            options = options.owner(owners.computeIfAbsent(owner, unused -> new Owner()));
        }
        RedisLocks locks = clients.get(ask.get("client").asText()).locks();
        JsonNode name = ask.get("name");
        return name.isArray()
                ? locks.acquireAll(words(name), options)
                : locks.acquire(name.asText(), options);
    }
}
