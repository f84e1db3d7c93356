package redislock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Held is a lock that is held. Every entry of an owner is a Held, and is released once.
type Held struct {
	*hold
	isReleased atomic.Bool
}

// hold is what is known of a lock that is held, by the clock of this host.
type hold struct {
	link  *link
	asked *request
	token string
	fence int64
	done  context.Context // ends with the loss or the release
	end   context.CancelFunc

	mutex      sync.Mutex
	ttl        time.Duration
	sent       time.Duration // when the last confirmed command was sent
	validUntil time.Duration
	entries    int
	timers     [2]*time.Timer
}

const (
	alarm = iota
	renewal
)

func newHeld(own *link, asked *request, token string, fence int64, sent time.Duration) *Held {
	held := &hold{link: own, asked: asked, token: token, fence: fence, ttl: asked.TTL, entries: 1}
	held.done, held.end = context.WithCancel(context.Background())
	held.confirm(sent, asked.TTL)
	return &Held{hold: held}
}

// Fence grows from holder to holder. Show it to the resource that the lock protects.
func (h *hold) Fence() int64 { return h.fence }

// Lost is closed a little before the lock may pass to somebody else, and by the last Release.
func (h *hold) Lost() <-chan struct{} { return h.done.Done() }

// IsLost reports the same by the clock, also if this process was paused.
func (h *hold) IsLost() bool {
	if now() >= h.lossAt() {
		h.end()
	}
	return h.done.Err() != nil
}

// ValidFor is how long nobody else is granted the lock.
func (h *hold) ValidFor() time.Duration {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.done.Err() != nil {
		return 0
	}
	return max(0, h.validUntil-now())
}

// Guard runs a command on the server if and only if the lock is held, in one step. It is never sent
// twice. A null reply is nil. Of a lock with several names, the first one is checked.
func (h *hold) Guard(ctx context.Context, inner ...any) (any, error) {
	if h.IsLost() {
		return nil, failure(ErrLost, "the command was not run")
	}
	words := append([]any{"LOCK.GUARD", h.asked.keys[0], h.token}, inner...)
	reply, err := h.link.call(ctx, h.asked.keys[0], answer, words)
	if kindOf(err) == ErrLost {
		h.end()
	}
	return reply, err
}

// Release releases the lock, even if the context is done. False: it was lost before. A release that
// cannot be delivered goes on in the background until the lease is over.
func (h *Held) Release(ctx context.Context) bool {
	if h.isReleased.Swap(true) {
		return false
	}
	wasHeld := !h.IsLost()
	h.mutex.Lock()
	h.entries--
	entries, until := h.entries, max(now(), h.validUntil)+h.ttl/50
	h.mutex.Unlock()
	if entries > 0 {
		return wasHeld
	}
	h.end()
	words := h.asked.command("RELEASE", h.token, "ALL")
	reply, err := h.link.call(context.WithoutCancel(ctx), h.asked.keys[0], answer, words)
	if err != nil {
		go h.asked.releaseAll(h.link, h.token, until, nil)
		return wasHeld
	}
	return wasHeld && h.asked.released(reply)
}

// lossAt: the loss is reported to the holder a little before validity ends.
func (h *hold) lossAt() time.Duration {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.validUntil - h.ttl/10
}

// confirm: the lease began after the sending, so it does not end before this. A loss is final.
func (h *hold) confirm(sent, ttl time.Duration) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.done.Err() == nil {
		h.sent = max(h.sent, sent)
		h.validUntil = max(h.validUntil, sent+ttl-ttl/100-2*time.Millisecond)
	}
}

// extend sends EXTEND and counts from there. It returns whether this hold is still there.
func (h *hold) extend(ctx context.Context, ttl, limit time.Duration) (bool, error) {
	sent := now()
	words := h.asked.command("EXTEND", h.token, ttl.Milliseconds())
	reply, err := h.link.call(ctx, h.asked.keys[0], limit, words)
	if err != nil || !h.asked.isFor(reply, h.fence) {
		return false, err
	}
	h.confirm(sent, ttl)
	return true, nil
}

// begin starts the two timers. The signal of the loss has one of its own, so that a renewal without
// an answer cannot delay it.
func (h *hold) begin() {
	context.AfterFunc(h.done, func() {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		for _, timer := range h.timers {
			if timer != nil {
				timer.Stop()
			}
		}
	})
	h.watch()
	if h.asked.every > 0 {
		h.at(renewal, h.sent+h.asked.every, h.renew)
	}
}

func (h *hold) at(which int, when time.Duration, do func()) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.done.Err() == nil {
		h.timers[which] = time.AfterFunc(max(0, when-now()), do)
	}
}

func (h *hold) watch() {
	if !h.IsLost() {
		h.at(alarm, min(h.lossAt(), now()+time.Second), h.watch) // the host may sleep
	}
}

func (h *hold) renew() {
	h.mutex.Lock()
	ttl := h.ttl
	h.mutex.Unlock()
	there, err := h.extend(h.done, ttl, max(time.Millisecond, min(answer, h.lossAt()-now())))
	switch {
	case err != nil:
		h.link.rediscover(h.done)
		h.at(renewal, now()+ttl/20, h.renew)
	case there:
		h.mutex.Lock()
		next := h.sent + h.asked.every
		h.mutex.Unlock()
		h.at(renewal, next, h.renew)
	default:
		h.end()
	}
}

func (h *hold) enterAgain(ctx context.Context, asked *request) (*Held, error) {
	h.mutex.Lock()
	ttl := max(h.ttl, asked.TTL)
	h.mutex.Unlock()
	there, err := h.extend(ctx, ttl, answer)
	if err != nil {
		return nil, err
	}
	if !there || h.done.Err() != nil {
		h.end()
		return nil, failure(ErrLost, "the owner's hold of this lock")
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.ttl = ttl
	h.entries++
	return &Held{hold: h}, nil
}

// Owner enters again a lock whose keys it holds already. It stands for one line of work, it is not
// for goroutines side by side.
type Owner struct{ holds []*hold }

// covering returns what the owner holds of these keys with this client: all of them, or nil.
func (o *Owner) covering(own *link, asked *request) (*hold, error) {
	o.holds = slices.DeleteFunc(o.holds, (*hold).IsLost)
	for _, held := range o.holds {
		mine := held.asked
		isMine := func(key string) bool { return slices.Contains(mine.keys, key) }
		switch {
		case held.link != own || !slices.ContainsFunc(asked.keys, isMine):
		case slices.ContainsFunc(asked.keys, func(key string) bool { return !isMine(key) }):
			return nil, failure(ErrInvalid, "the owner holds some of these keys: release them first")
		case mine.Shared && (!asked.Shared || asked.Limit != mine.Limit):
			return nil, failure(ErrInvalid, "the owner holds this lock shared: release it first")
		default:
			return held, nil
		}
	}
	return nil, nil
}
