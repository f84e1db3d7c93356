package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	mathrand "math/rand"
	"sync"
	"time"
)

const patience = 30 * time.Second // without a server; then a wait without limit gives up

// request is what was asked for, checked.
type request struct {
	Options
	keys  []string
	every time.Duration // 0: no renewal
}

func checked(names []string, options Options) (*request, error) {
	seen := map[string]bool{}
	for _, name := range names {
		if name == "" || seen[name] {
			return nil, failure(ErrInvalid, "the names of a lock are not empty, and none is given twice")
		}
		seen[name] = true
	}
	every := options.RenewEvery
	if every == 0 {
		every = options.TTL / 3
	}
	switch {
	case len(names) < 1 || len(names) > 1000:
		return nil, failure(ErrInvalid, "a lock has 1 to 1000 names")
	case options.TTL < 10*time.Millisecond || options.TTL > 7*24*time.Hour:
		return nil, failure(ErrInvalid, "the TTL must be from 10 ms to a week")
	case options.Wait < 0 && options.Wait != NoWait:
		return nil, failure(ErrInvalid, "Wait must be above 0, NoWait, or 0 (until it is free)")
	case options.Limit != 0 && (!options.Shared || options.Limit < 1 || options.Limit > 1_000_000):
		return nil, failure(ErrInvalid, "Limit must be from 1 to 1000000 and needs Shared")
	case every < 0 || every > options.TTL/2:
		return nil, failure(ErrInvalid, "RenewEvery must be above 0 and at most half of the TTL")
	}
	if options.NoRenew {
		every = 0
	}
	return &request{Options: options, keys: names, every: every}, nil
}

func (r *request) command(verb, token string, rest ...any) []any {
	words := []any{"LOCK." + verb, r.keys[0], token}
	if len(r.keys) > 1 {
		words = []any{"LOCK.M" + verb, len(r.keys)}
		for _, key := range r.keys {
			words = append(words, key)
		}
		words = append(words, token)
	}
	return append(words, rest...)
}

func (r *request) extend(token string, ttl time.Duration) []any {
	return r.command("EXTEND", token, ttl.Milliseconds())
}

// acquire: a wait of 0 is for ever, a negative one is none.
func (r *request) acquire(token string, wait time.Duration) []any {
	words := r.command("ACQUIRE", token, r.TTL.Milliseconds(), "ONCE")
	if r.Shared {
		words = append(words, "SHARED")
	}
	if r.Limit != 0 {
		words = append(words, "LIMIT", r.Limit)
	}
	if r.Label != "" {
		words = append(words, "OWNER", r.Label)
	}
	if wait == 0 || wait >= time.Millisecond {
		words = append(words, "BLOCK", wait.Milliseconds())
	}
	return words
}

// hold is a lock that was granted: what is known of it, by the clock of this host.
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
}

func newHold(own *link, asked *request, token string, fence int64, sent time.Duration) *hold {
	granted := &hold{link: own, asked: asked, token: token, fence: fence, ttl: asked.TTL, entries: 1}
	granted.done, granted.end = context.WithCancel(context.Background())
	granted.confirm(sent, asked.TTL)
	return granted
}

// confirm: the lease began after the sending, so it does not end before this.
func (h *hold) confirm(sent, ttl time.Duration) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.done.Err() != nil {
		return // a loss is final
	}
	h.sent = max(h.sent, sent)
	h.validUntil = max(h.validUntil, sent+ttl-ttl/100-2*time.Millisecond)
}

// lossAt: the holder is told of the loss a little before validity ends.
func (h *hold) lossAt() time.Duration { return h.validUntil - h.ttl/10 }

func (h *hold) isLost() bool {
	if now() >= h.lossAt() {
		h.end()
	}
	return h.done.Err() != nil
}

func (h *hold) times() (sent, lossAt, ttl time.Duration) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.sent, h.lossAt(), h.ttl
}

// extend sends EXTEND and counts from there. It returns whether this hold is still there.
func (h *hold) extend(ctx context.Context, ttl, limit time.Duration) (bool, error) {
	sent := now()
	words := h.asked.extend(h.token, ttl)
	reply, err := h.link.ask(ctx, h.asked.keys[0], limit, command(limit, words))
	if err != nil || !isFence(reply, h.fence) {
		return false, err
	}
	h.confirm(sent, ttl)
	return true, nil
}

func isFence(reply any, fence int64) bool {
	all, several := reply.([]any)
	if !several {
		return reply == fence
	}
	for _, one := range all {
		if one != fence {
			return false
		}
	}
	return true
}

// keep renews until the lock is lost or released.
func (h *hold) keep() {
	defer h.end()
	for {
		sent, lossAt, ttl := h.times()
		next := lossAt
		if h.asked.every > 0 {
			next = min(sent+h.asked.every, lossAt)
		}
		if !pause(h.done, next-now()) || now() >= lossAt {
			return
		}
		there, err := h.extend(h.done, ttl, max(time.Millisecond, min(answer, lossAt-now())))
		switch {
		case err != nil:
			if !pause(h.done, min(ttl/20, lossAt-now())) {
				return
			}
			h.link.rediscover(h.done, h.asked.keys[0])
		case !there:
			return
		}
	}
}

func (h *hold) enterAgain(ctx context.Context, asked *request) (*Held, error) {
	_, _, ttl := h.times()
	ttl = max(ttl, asked.TTL)
	there, err := h.extend(ctx, ttl, answer)
	if err != nil {
		return nil, explain(err, h.link.followsMaster)
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

// pause returns false if the context was done before the time was over.
func pause(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(max(0, duration))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

type outcome int

const (
	notKnown outcome = iota
	wasHeld
	wasNotHeld
)

// releaseAll sends RELEASE ALL until it is done or the lease is over. After a request without an
// answer (not granted), null is not the end: it may still arrive.
func releaseAll(
	own *link, asked *request, token string, until time.Duration, granted bool,
) outcome {
	ctx := context.Background()
	words := asked.command("RELEASE", token, "ALL")
	for wait := 50 * time.Millisecond; ; wait = min(time.Second, wait*2) {
		reply, err := own.ask(ctx, asked.keys[0], answer, command(answer, words))
		if err == nil {
			if tookOff(reply) {
				return wasHeld
			} else if granted {
				return wasNotHeld
			}
		} else if kindOf(explain(err, true)) == ErrMisconfigured {
			return notKnown
		}
		if now()+wait > until {
			return notKnown
		}
		pause(ctx, wait)
		own.rediscover(ctx, asked.keys[0])
	}
}

func tookOff(reply any) bool {
	all, several := reply.([]any)
	if !several {
		all = []any{reply}
	}
	for _, one := range all {
		if count, ok := one.(int64); !ok || count < 1 {
			return false
		}
	}
	return true
}

func kindOf(err error) error {
	var own *Error
	if errors.As(err, &own) {
		return own.Kind
	}
	return nil
}

// attempt is one request with a token of its own, which is never used again.
type attempt struct {
	link    *link
	asked   *request
	token   string
	until   time.Duration // 0: no limit
	sent    time.Duration
	granted bool
}

// run returns a hold, or nil: busy.
func (a *attempt) run(ctx context.Context) (*hold, error) {
	ttl, key := a.asked.TTL, a.asked.keys[0]
	build := func() ([]any, time.Duration) {
		a.sent = now()
		if a.until == 0 {
			return a.asked.acquire(a.token, 0), 0
		}
		left := max(time.Nanosecond, a.until-a.sent)
		return a.asked.acquire(a.token, left), left + answer
	}
	var reply any
	var err error
	if a.asked.Wait == NoWait {
		reply, err = a.link.ask(ctx, key, answer, build)
	} else {
		reply, err = a.link.askWaiting(ctx, key, a.until, build)
	}
	if err != nil || reply == nil {
		return nil, err
	}
	a.granted = true
	if all, several := reply.([]any); several {
		reply = all[0]
	}
	fence, _ := reply.(int64)
	made := newHold(a.link, a.asked, a.token, fence, a.sent)
	if made.validUntil-now() < ttl/2 {
		// The reply does not say when the grant was made: let a command that is sent now tell.
		there, err := made.extend(ctx, ttl, answer)
		if err == nil && !there {
			err = &noAnswer{cause: errors.New("the lease ended before the grant arrived"), sent: true}
		}
		if err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil || made.isLost() {
		return nil, a.link.unanswered(ctx, errors.New("the answer took longer than the lease"), true)
	}
	return made, nil
}

// acquire makes attempt after attempt until the lock is granted or the wait is over.
func acquire(ctx context.Context, own *link, asked *request) (*hold, error) {
	var until, troubleSince time.Duration
	if asked.Wait != 0 {
		until = now() + max(0, asked.Wait)
	}
	rest := 50 * time.Millisecond
	for {
		began := now()
		secret := make([]byte, 16)
		if _, err := rand.Read(secret); err != nil {
			return nil, err
		}
		one := &attempt{link: own, asked: asked, token: hex.EncodeToString(secret), until: until}
		granted, err := one.run(ctx)
		if granted != nil {
			return granted, nil
		}
		var silence *noAnswer
		if one.granted || (errors.As(err, &silence) && silence.sent) {
			go releaseAll(own, asked, one.token, now()+asked.TTL, false)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil {
			if until != 0 && now() >= until-time.Millisecond {
				return nil, failure(ErrBusy, "after a wait of %v", max(0, asked.Wait))
			}
			err = failure(ErrUnavailable, "the server ended the wait early") // CLIENT UNBLOCK
		}
		err = explain(err, own.followsMaster)
		kind := kindOf(err)
		if kind != ErrUnavailable && kind != ErrQuarantined {
			return nil, err
		}
		if troubleSince == 0 || now()-began > time.Second {
			troubleSince, rest = now(), 50*time.Millisecond
		}
		wait := rest/2 + time.Duration(mathrand.Int63n(int64(rest/2)))
		if kind == ErrQuarantined {
			wait = err.(*Error).RetryAfter
		}
		end := until
		if end == 0 {
			end = troubleSince + patience
		}
		if now()+wait >= end {
			return nil, err
		}
		rest = min(time.Second, rest*2)
		if !pause(ctx, wait) {
			return nil, ctx.Err()
		}
		own.rediscover(ctx, asked.keys[0])
	}
}
