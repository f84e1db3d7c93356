package org.redislock;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import org.redislock.LockException.InvalidRequest;

/**
 * Acquiring with the same owner enters again a lock whose keys the owner holds already. An owner
 * is for one sequence of steps: do not use it in several threads at the same time.
 */
public final class Owner {
    final List<Held> holds = new ArrayList<>();

    /** What the owner holds of these keys with this client: all of them, or null. */
    Held covering(Link link, List<String> keys, LockOptions options) {
        holds.removeIf(Held::isLost);
        for (Held held : holds) {
            if (held.link != link || Collections.disjoint(held.keys, keys)) {
                continue;
            }
            if (!held.keys.containsAll(keys)) {
                throw new InvalidRequest("the owner holds some of these keys: release them first");
            }
            boolean sameLimit = Objects.equals(held.options.limit(), options.limit());
            if (held.options.isShared() && !(options.isShared() && sameLimit)) {
                throw new InvalidRequest("the owner holds this lock shared: release it first");
            }
            return held;
        }
        return null;
    }
}
