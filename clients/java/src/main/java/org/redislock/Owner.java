package org.redislock;

import java.util.ArrayList;
import java.util.List;
import org.redislock.LockException.InvalidRequest;

/**
 * Acquiring with the same owner enters again a lock whose keys the owner holds already. An owner
 * stands for one line of work, it is not for threads side by side.
 */
public final class Owner {
    private final List<Hold> holds = new ArrayList<>();

    synchronized void add(Hold hold) {
        holds.add(hold);
    }

    /** The hold that covers the keys; null if the owner holds none of them. */
    synchronized Hold covering(List<String> keys, LockOptions options) {
        holds.removeIf(Hold::isLost);
        for (Hold hold : holds) {
            long common = keys.stream().filter(hold.keys::contains).count();
            if (common == keys.size()) {
                boolean sameLimit = java.util.Objects.equals(hold.options.limit(), options.limit());
                if (hold.options.isShared() && !(options.isShared() && sameLimit)) {
                    throw new InvalidRequest("the owner holds this lock shared: release it first");
                }
                return hold;
            }
            if (common > 0) {
                throw new InvalidRequest("the owner holds some of these keys: release them first");
            }
        }
        return null;
    }
}
