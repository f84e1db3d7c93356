// Package redislock has locks of the redislock module for go-redis.
//
//	options := redislock.Options{TTL: 10 * time.Second, Wait: 30 * time.Second}
//	err := redislock.Do(ctx, rdb, "nightly", options,
//		func(ctx context.Context, held *redislock.Held) error { return work(ctx, held.Fence()) })
package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// NoWait as Options.Wait tries once.
const NoWait time.Duration = -1

// Options of a lock. TTL has no default.
type Options struct {
	// TTL is the lease, 10 ms to a week. It is renewed while the lock is held.
	TTL time.Duration
	// Wait is how long to wait at most, up to 10000 days. 0: until the lock is free or the context
	// is done.
	Wait time.Duration
	// Shared holds the lock together with other shared holders; Limit, if not 0: at most so many.
	Shared bool
	Limit  int
	// Owner enters again what this owner holds.
	Owner *Owner
	// NoRenew turns renewal off. RenewEvery is a third of the TTL if it is 0, at most half of it.
	NoRenew    bool
	RenewEvery time.Duration
	// Label is shown by LOCK.INFO.
	Label string
}

// Do acquires the lock, runs the work and releases. The context of the work is cancelled, with the
// cause ErrLost, when the lock is lost; Do returns ErrLost then, joined with the error of the work.
func Do(ctx context.Context, client redis.UniversalClient, name string, options Options,
	work func(ctx context.Context, held *Held) error) (err error) {
	held, err := Acquire(ctx, client, name, options)
	if err != nil {
		return err
	}
	inside, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(held.done, func() {
		if !held.isReleased.Load() { // the work may have done that, and go on
			cancel(ErrLost)
		}
	})
	defer func() { // also if the work panics
		stop()
		wasHeld := held.isReleased.Load() || held.Release(ctx) // the work may have done it
		if !wasHeld && !errors.Is(err, ErrLost) {
			err = errors.Join(err, failure(ErrLost, "before it was released"))
		}
		cancel(nil)
	}()
	return work(inside, held)
}

// Acquire returns ErrBusy when the wait is over. Whatever error it returns, nothing is left held.
func Acquire(
	ctx context.Context, client redis.UniversalClient, name string, options Options,
) (*Held, error) {
	return AcquireAll(ctx, client, []string{name}, options)
}

// AcquireAll takes several locks, all or none. In a cluster their names need a common {hash tag}.
func AcquireAll(
	ctx context.Context, client redis.UniversalClient, names []string, options Options,
) (*Held, error) {
	asked, err := checked(names, options)
	if err != nil {
		return nil, err
	}
	own, err := linkOf(client)
	if err != nil {
		return nil, err
	}
	if options.Owner != nil {
		if outer, err := options.Owner.covering(own, asked); err != nil {
			return nil, err
		} else if outer != nil {
			return outer.enterAgain(ctx, asked)
		}
	}
	held, err := asked.acquire(ctx, own)
	if err != nil {
		return nil, err
	}
	held.begin()
	if options.Owner != nil {
		options.Owner.holds = append(options.Owner.holds, held.hold)
	}
	return held, nil
}
