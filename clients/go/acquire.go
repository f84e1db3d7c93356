package redislock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand"
	"slices"
	"time"
)

const (
	patience    = 30 * time.Second // without a server; then a wait without limit gives up
	longestWait = 10_000 * 24 * time.Hour
)

// request is what was asked for, checked.
type request struct {
	Options
	keys  []string
	every time.Duration // 0: no renewal
}

func checked(names []string, options Options) (*request, error) {
	seen := map[string]bool{"": true}
	for _, name := range names {
		if seen[name] {
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
	case (options.Wait < 0 && options.Wait != NoWait) || options.Wait > longestWait:
		return nil, failure(ErrInvalid,
			"Wait must be NoWait (try once), 0 (until it is free), or up to 10000 days")
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
	words := []any{"LOCK." + verb}
	if len(r.keys) > 1 {
		words = []any{"LOCK.M" + verb, len(r.keys)}
	}
	for _, key := range r.keys {
		words = append(words, key)
	}
	return append(append(words, token), rest...)
}

func (r *request) acquireCommand(token string, until time.Duration) []any {
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
	if until == 0 {
		words = append(words, "BLOCK", 0)
	} else if left := (until - now()).Milliseconds(); left > 0 {
		words = append(words, "BLOCK", left)
	}
	return words
}

// each returns the replies for each key. A reply of another form has none of them.
func (r *request) each(reply any) []any {
	replies := []any{reply}
	if len(r.keys) > 1 {
		replies, _ = reply.([]any)
	}
	if len(replies) != len(r.keys) {
		return make([]any, len(r.keys))
	}
	return replies
}

// isFor: does the reply have this fence for each key?
func (r *request) isFor(reply any, fence int64) bool {
	isOther := func(one any) bool { return one != fence }
	return !slices.ContainsFunc(r.each(reply), isOther)
}

// released: did a RELEASE remove a hold of each key?
func (r *request) released(reply any) bool {
	isNone := func(one any) bool { count, _ := one.(int64); return count < 1 }
	return !slices.ContainsFunc(r.each(reply), isNone)
}

// releaseAll sends RELEASE ALL until it is done or the lease is over. A request without an answer
// (asked, nil after a grant) may still arrive, so null is not the end. But a wait that is released
// ends with null: once that is here, nothing can come any more.
func (r *request) releaseAll(own *link, token string, until time.Duration, asked *sending) {
	ctx, began := context.Background(), now()
	for wait := 50 * time.Millisecond; ; wait = min(time.Second, wait*2) {
		reply, err := own.call(ctx, r.keys[0], answer, r.command("RELEASE", token, "ALL"))
		isDone := err == nil && (asked == nil || r.released(reply))
		if !isDone && now()+wait <= until {
			time.Sleep(wait)
			isDone = asked != nil && asked.isRefused()
		}
		isDone = isDone || now()+wait > until
		if asked != nil && (isDone || now()-began > answer) {
			asked.abandon()
		}
		if isDone {
			return
		}
		own.rediscover(ctx)
	}
}

// attempt is one request with a token of its own, which is never used again. It returns nil if
// somebody else has the lock. until: the end of the wait, 0: none.
func (r *request) attempt(ctx context.Context, own *link, until time.Duration) (*Held, error) {
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	// Servers save a lock whose token is a version 4 UUID fastest and in the least room.
	secret[6], secret[8] = secret[6]&0x0f|0x40, secret[8]&0x3f|0x80
	token := fmt.Sprintf("%x-%x-%x-%x-%x", secret[:4], secret[4:6], secret[6:8], secret[8:10], secret[10:])
	sent := time.Duration(0)
	if r.Wait != NoWait {
		if err := own.turn(ctx, until); err != nil {
			return nil, err
		}
		defer func() { <-own.waiting }()
	}
	limit := time.Duration(0)
	if until != 0 {
		limit = max(0, until-now()) + answer
	}
	reply, err := own.ask(ctx, r.keys[0], limit, true, func() []any {
		sent = now()
		return r.acquireCommand(token, until)
	})
	var silence *Error
	if errors.As(err, &silence) && silence.sending != nil {
		go r.releaseAll(own, token, now()+r.TTL, silence.sending)
	}
	if err != nil || reply == nil {
		return nil, err
	}
	held, err := r.granted(ctx, own, token, reply, sent)
	if err != nil {
		go r.releaseAll(own, token, now()+r.TTL, nil)
	}
	return held, err
}

// granted makes sure of a grant. After a wait, the reply does not say when it was made: a command
// that is sent now does.
func (r *request) granted(
	ctx context.Context, own *link, token string, reply any, sent time.Duration,
) (*Held, error) {
	fence, isNumber := r.each(reply)[0].(int64)
	if !isNumber || !r.isFor(reply, fence) {
		return nil, failure(ErrMisconfigured, "the server's reply %v is not a fence", reply)
	}
	held := newHeld(own, r, token, fence, sent)
	if held.ValidFor() < r.TTL/2 {
		there, err := held.extend(ctx, r.TTL, answer)
		if err != nil {
			return nil, err
		}
		if !there {
			return nil, failure(ErrUnavailable, "the lease ended before the grant arrived")
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if held.IsLost() {
		return nil, failure(ErrUnavailable, "the reply took longer than the lease")
	}
	return held, nil
}

// turn takes one of the connections that may wait. until: 0: no limit.
func (l *link) turn(ctx context.Context, until time.Duration) error {
	select {
	case l.waiting <- struct{}{}: // as a rule, and without a timer
		return nil
	default:
	}
	var over <-chan time.Time
	if until != 0 {
		over = time.After(until - now())
	}
	select {
	case l.waiting <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-over:
		return failure(ErrUnavailable, "%d requests of this client already wait", maxWaiting)
	}
}

func kindOf(err error) error {
	var own *Error
	if errors.As(err, &own) {
		return own.Kind
	}
	return nil
}

// acquire makes attempt after attempt until the lock is granted or the wait is over.
func (r *request) acquire(ctx context.Context, own *link) (*Held, error) {
	var until, troubleSince time.Duration
	if r.Wait != 0 {
		until = now() + max(0, r.Wait)
	}
	rest := 50 * time.Millisecond
	for {
		began := now()
		held, err := r.attempt(ctx, own, until)
		if held != nil {
			return held, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil {
			if until != 0 && now() >= until-2*time.Millisecond {
				return nil, failure(ErrBusy, "after a wait of %v", max(0, r.Wait))
			}
			err = failure(ErrUnavailable, "the server ended the wait early") // CLIENT UNBLOCK
		}
		var trouble *Error
		if !errors.As(err, &trouble) ||
			(trouble.Kind != ErrUnavailable && trouble.Kind != ErrQuarantined) {
			return nil, err
		}
		if troubleSince == 0 || now()-began > 3*answer { // it was in the queue
			troubleSince, rest = now(), 50*time.Millisecond
		}
		wait := trouble.RetryAfter
		if wait == 0 {
			wait = rest/2 + time.Duration(mathrand.Int63n(int64(rest/2)))
		}
		end := until
		if end == 0 {
			end = max(troubleSince, time.Duration(own.openedAt.Load())) + patience
		}
		if now()+wait >= end {
			return nil, err
		}
		rest = min(time.Second, rest*2)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		own.rediscover(ctx)
	}
}
