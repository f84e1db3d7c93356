// Package redislock has locks of the redislock module for go-redis.
//
//	options := redislock.Options{TTL: 10 * time.Second, Wait: 30 * time.Second}
//	err := redislock.Do(ctx, rdb, "nightly", options,
//		func(ctx context.Context, held *redislock.Held) error { return work(ctx, held.Fence()) })
package redislock

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// NoWait as Options.Wait tries once.
const NoWait time.Duration = -1

// Options of a lock. TTL has no default.
type Options struct {
	// TTL is the lease, 10 ms to a week. It is renewed while the lock is held.
	TTL time.Duration
	// Wait is how long to wait at most. 0: until the lock is free or the context is done.
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
// cause ErrLost, when the lock is lost; Do returns ErrLost then, unless the work returns an error.
func Do(ctx context.Context, client redis.UniversalClient, name string, options Options,
	work func(ctx context.Context, held *Held) error) error {
	held, err := Acquire(ctx, client, name, options)
	if err != nil {
		return err
	}
	defer held.Release(ctx) // a work that panics
	inside, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(held.hold.done, func() { cancel(ErrLost) })
	err = work(inside, held)
	stop()
	if wasHeld := held.Release(ctx); err == nil && !wasHeld {
		return failure(ErrLost, "before it was released")
	}
	return err
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
		outer, err := options.Owner.covering(asked)
		if err != nil {
			return nil, err
		}
		if outer != nil {
			return outer.enterAgain(ctx, asked)
		}
	}
	granted, err := acquire(ctx, own, asked)
	if err != nil {
		return nil, err
	}
	go granted.keep()
	if options.Owner != nil {
		options.Owner.add(granted)
	}
	return &Held{hold: granted}, nil
}

// Held is a lock that is held.
type Held struct {
	hold     *hold
	released bool
}

// Fence grows from holder to holder. Show it to the resource that the lock protects.
func (h *Held) Fence() int64 { return h.hold.fence }

// Lost is closed a little before the lock may pass to somebody else, and by the last Release.
func (h *Held) Lost() <-chan struct{} { return h.hold.done.Done() }

// IsLost tells the same by the clock, also if this process was paused.
func (h *Held) IsLost() bool {
	h.hold.mutex.Lock()
	defer h.hold.mutex.Unlock()
	return h.released || h.hold.isLost()
}

// ValidFor is how long nobody else is granted the lock.
func (h *Held) ValidFor() time.Duration {
	h.hold.mutex.Lock()
	defer h.hold.mutex.Unlock()
	if h.released || h.hold.done.Err() != nil {
		return 0
	}
	return max(0, h.hold.validUntil-now())
}

// Guard runs a command on the server if and only if the lock is held, in one step. It is never sent
// twice. A null reply is nil. Of a lock with several names, the first one is checked.
func (h *Held) Guard(ctx context.Context, inner ...any) (any, error) {
	if h.IsLost() {
		return nil, failure(ErrLost, "the command was not run")
	}
	key := h.hold.asked.keys[0]
	words := append([]any{"LOCK.GUARD", key, h.hold.token}, inner...)
	reply, err := h.hold.link.ask(ctx, key, answer, command(answer, words))
	if err == nil {
		return reply, nil
	}
	err = explain(err, h.hold.link.followsMaster)
	if kindOf(err) == ErrLost {
		h.hold.end()
	}
	return nil, err
}

// Release releases the lock, even if the context is done. False: it was lost before. A release that
// cannot be delivered goes on in the background until the lease is over.
func (h *Held) Release(ctx context.Context) bool {
	own := h.hold
	own.mutex.Lock()
	wasHeld := !h.released && !own.isLost()
	last := false
	if !h.released {
		own.entries--
		last = own.entries == 0
	}
	h.released = true
	until := max(now(), own.validUntil) + own.ttl/50
	own.mutex.Unlock()
	if !last {
		return wasHeld
	}
	own.end()
	delivered := make(chan bool, 1)
	go func() { delivered <- releaseAll(own.link, own.asked, own.token, until, true) != wasNotHeld }()
	select {
	case held := <-delivered:
		return wasHeld && held
	case <-time.After(answer):
		return wasHeld
	}
}

// Owner enters again a lock whose keys it holds already. It stands for one line of work, it is not
// for goroutines side by side.
type Owner struct{ holds []*hold }

func (o *Owner) add(granted *hold) { o.holds = append(o.holds, granted) }

func (o *Owner) covering(asked *request) (*hold, error) {
	o.holds = slices.DeleteFunc(o.holds, func(one *hold) bool { return one.done.Err() != nil })
	for _, one := range o.holds {
		common := 0
		for _, key := range asked.keys {
			if slices.Contains(one.asked.keys, key) {
				common++
			}
		}
		switch {
		case common == 0:
		case common < len(asked.keys):
			return nil, failure(ErrInvalid, "the owner holds some of these keys: release them first")
		case one.asked.Shared && (!asked.Shared || asked.Limit != one.asked.Limit):
			return nil, failure(ErrInvalid, "the owner holds this lock shared: release it first")
		default:
			return one, nil
		}
	}
	return nil, nil
}
